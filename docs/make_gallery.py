"""The pages that Tenfold writes, one of each kind, made on a small data set for the gallery of the documentation.

Writes them to build/gallery, or to the folder that is given, with pictures where Chromium and Playwright are found.
With `--report docs/images/report.png` it makes the picture of a report that the README shows instead, on MNIST.
"""

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import tenfold
from tenfold.common.imports import tenfold_command
from tenfold.reports.pages.run_pages import write_report

SETTLE_MS = 3000
"""How long a page may take to draw its plots."""
DIGITS = "--model mlp --data digits"
PAGES = {
    "race": (
        "The demo",
        "A plain PyTorch loop, one worker and a worker per core, each with a flag where it was predicted to finish.",
        "tenfold demo --no-open -o race.html",
    ),
    "run": (
        "One run",
        "Metrics, learning curves, and what each worker did when.",
        f"tenfold train {DIGITS} --epochs 6 --workers 2 --threads 1 -o run.html",
    ),
    "compare": (
        "A comparison",
        "Numbers of workers and learning rates side by side, with speedup, accuracy and a heat map.",
        f"tenfold compare {DIGITS} --epochs 6 --workers 1,2 --lr 0.02,0.05 --threads 1 -o compare.html",
    ),
    "folds": (
        "A cross-validation",
        "The scores of the folds, their spread, and when each was trained on which core.",
        f"tenfold crossval {DIGITS} --epochs 6 --folds 5 -o folds.html",
    ),
    "virtual": (
        "A virtual cluster",
        "The same weights as on eight machines, with the time predicted.",
        f"tenfold simulate {DIGITS} --epochs 6 --workers 8 --link 1gbe -o virtual.html",
    ),
    "forecast": (
        "A forecast",
        "The predicted speedup with 1 to 64 machines, without training, and where it levels off.",
        f"tenfold simulate {DIGITS} --workers 1,2,4,8,16,32,64 --link 1gbe,10gbe --only-time -o forecast.html",
    ),
    "plan": (
        "A plan",
        "Which workers, threads and batch size reach an accuracy soonest, and the short runs that say so.",
        f"tenfold plan {DIGITS} --target 0.95 --report plan.html",
    ),
    "papers": (
        "A paper's experiment",
        "The numbers of a paper beside those of this machine.",
        "tenfold recipe run dsmp-table-8 -o papers.html",
    ),
    "board": ("The board", "All runs of a folder, live, with what differs between them.", "tenfold board --no-open"),
}


def main(folder: Path) -> None:
    """Run the command of each page, and make pictures and a list of them."""
    folder.mkdir(parents=True, exist_ok=True)
    index = []
    with tempfile.TemporaryDirectory() as place:
        for name, (title, about, command) in PAGES.items():
            words = tenfold_command(*shlex.split(command)[1:])
            page = Path(place) / f"{name}.html"
            if name == "board":
                photograph_board(words, place, folder / "board.png")
            elif subprocess.run(words, cwd=place, check=False).returncode == 0:
                shutil.copy(page, folder)
                take_picture(page.as_uri(), folder / f"{name}.png")
            else:
                continue
            index.append({"name": name, "title": title, "about": about, "command": command})
            print(f"{name:10} {title}", flush=True)
    (folder / "gallery.json").write_text(json.dumps(index, indent=1))


def photograph_board(command: list[str], place: str, picture: Path) -> None:
    """Draw the list of all runs that the other pages have made."""
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        take_picture(server.stdout.readline().split()[-1], picture, 1280, 900)
        server.terminate()


def make_report_picture(picture: Path) -> None:
    """Train LeNet-5 on MNIST with two workers, and draw the top of its report with few colors, to keep it small."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as runs:
        run = tenfold.train(model="lenet5", data="mnist", epochs=5, workers=2, threads=1, seed=1, runs=runs)
        take_picture(write_report([run], Path(runs) / "report.html").as_uri(), picture, 1100, 1300)
    Image.open(picture).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(picture, optimize=True)


def take_picture(address: str, picture: Path, width: int = 1280, height: int = 1600) -> None:
    """Draw a page as a picture, where Chromium and Playwright are installed."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None or find_spec("playwright") is None:
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as start:
        window = start.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = window.new_page(viewport={"width": width, "height": height})
        page.goto(address)
        page.wait_for_timeout(SETTLE_MS)
        page.screenshot(path=picture)
        window.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--report"]:
        make_report_picture(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/gallery"))
