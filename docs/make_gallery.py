"""The pages that Tenfold writes, one of each kind, made on a small data set for the gallery of the documentation.

Writes them to build/gallery, or to the folder that is given, with pictures where Chromium is found. With
`--report docs/images/report.png` it makes the picture of a report that the README shows instead, on MNIST.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import tenfold
from tenfold.reports.pages.run_pages import write_report

PAGES = {
    "run": ("One run", "Metrics, learning curves, and what each worker did when.", "tenfold report 1 -o run.html"),
    "compare": (
        "A comparison",
        "Strategies and numbers of workers side by side, with speedup and accuracy.",
        "tenfold compare --model mlp --data digits --workers 1,2 --strategy allreduce,butterfly -o compare.html",
    ),
    "folds": (
        "A cross-validation",
        "The scores of the folds, their spread, and when each was trained on which core.",
        "tenfold crossval --model mlp --data digits --folds 5",
    ),
    "virtual": (
        "A virtual cluster",
        "The same weights as on eight machines, with the time predicted.",
        "tenfold simulate --model mlp --data digits --workers 8 --link 1gbe -o virtual.html",
    ),
}


def main(folder: Path) -> None:
    """Make the pages, their pictures and a list of them."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as runs:
        fields = {"model": "mlp", "data": "digits", "epochs": 6, "threads": 1, "oversubscribe": True}
        experiment = tenfold.Experiment(**fields)
        pages = {
            "run": [tenfold.train(experiment, workers=2, sync_every=4, average="weights", runs=runs)],
            "compare": tenfold.compare(
                experiment, workers=[1, 2], strategy=["allreduce", "butterfly"], average="weights", runs=runs
            ).runs,
            "folds": [tenfold.cross_validate(experiment, folds=5, runs=runs).run],
            "virtual": [tenfold.simulate(experiment, workers=8, link="1gbe", runs=runs)],
        }
        for name, shown in pages.items():
            page = write_report(shown, folder / f"{name}.html")
            take_picture(page, folder / f"{name}.png")
            print(f"{page.name:15} {PAGES[name][0]}")
    index = [{"name": name, "title": t, "about": about, "command": c} for name, (t, about, c) in PAGES.items()]
    (folder / "gallery.json").write_text(json.dumps(index, indent=1))


def make_report_picture(picture: Path) -> None:
    """Train LeNet-5 on MNIST with two workers, and draw the top of its report with few colors, to keep it small."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as runs:
        run = tenfold.train(model="lenet5", data="mnist", epochs=5, workers=2, threads=1, seed=1, runs=runs)
        take_picture(write_report([run], Path(runs) / "report.html"), picture, "1100,1300")
    Image.open(picture).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(picture, optimize=True)


def take_picture(page: Path, picture: Path, size: str = "1280,1600") -> None:
    """Draw a page as a picture, where Chromium is installed."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is not None:
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={size}"]
        options += [f"--screenshot={picture}", "--virtual-time-budget=4000", page.resolve().as_uri()]
        subprocess.run([browser, *options], check=False, timeout=90, capture_output=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--report"]:
        make_report_picture(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/gallery"))
