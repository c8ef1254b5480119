"""How the board copes with many runs: first paint, bytes a message, memory of the server.

    python benchmarks/board.py [--runs 1000] [--points 2000] [--others PYTHON]

Makes a store of finished runs, and ten more that record 40 points a second while their page is open. Prints how long
the table of all runs takes until its rows are there, what its data weigh, how many bytes a message of the comparison of
the ten running runs holds, and the memory of the server at the end. Chromium is asked where it is found; without it the
times are those of the requests alone.

Then the same of TensorBoard and MLflow on runs with the same points, where an interpreter has them (--others) or their
commands are on the path.
"""

import argparse
import http.client
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from itertools import product
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from support.filled_store import fill_store
from support.other_boards import SELECTED, find_boards, measure_board

from tenfold.experiment import Experiment
from tenfold.runs import Store
from tenfold.runs.events import Metric, Started

CHROMIUM = Path("/usr/bin/chromium")
RUNNING = 10
FACTS = {"data": {"name": "digits", "shape": [64], "outputs": 10, "classes": 10, "train": 1437, "test": 360}}
RESULT = {"part": "test", "metrics": {"accuracy": 0.97, "loss": 0.1}, "seconds": 1.5, "epochs": 3, "steps": 60}


def fill(folder: Path, runs: int, points: int) -> Store:
    """Make a store of finished runs with as many points each."""
    settings = product((1, 2, 4), (0.05, 0.1, 0.2))
    experiments = [Experiment(model="mlp", data="digits", workers=workers, lr=lr) for workers, lr in settings]
    store = fill_store(folder, runs, experiments, FACTS, RESULT)
    with sqlite3.connect(store.file) as connection:
        connection.executemany(
            "INSERT INTO events (run, type, epoch, body) VALUES (?, 'metric', 0, ?)",
            ((run, body) for run in range(1, runs + 1) for body in bodies(points)),
        )
    return store


def bodies(points: int) -> list[str]:
    """Return the events of a loss that falls."""
    common = {"type": "metric", "name": "loss", "part": "train", "epoch": 0, "worker": 0}
    return [
        json.dumps({**common, "at": at / 10, "value": 2 / (1 + at / 50), "step": at, "seconds": at / 10})
        for at in range(points)
    ]


def record(store: Store, stop: threading.Event) -> list[int]:
    """Let ten runs record 40 points a second until they are stopped."""
    numbers = [
        store.create(Experiment(model="mlp", data="digits", seed=seed, epochs=1000), kind="train", metadata=FACTS)
        for seed in range(RUNNING)
    ]
    for number in numbers:
        store.append(number, [Started(at=0.0, steps_per_epoch=100, batch_size=64, workers=1, train_samples=1437)])

    def go() -> None:
        step = 0
        while not stop.wait(0.5):
            points = range(step, step + 20)
            for number in numbers:
                store.append(
                    number,
                    [
                        Metric(
                            at=at / 40, name="loss", value=1 / (1 + at), part="train", step=at, epoch=0, seconds=at / 40
                        )
                        for at in points
                    ],
                )
            step += 20

    threading.Thread(target=go, daemon=True).start()
    return numbers


def ask(address: str, path: str, cookie: str) -> tuple[float, int]:
    """Return the seconds and the bytes of a request."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port)
    begun = time.perf_counter()
    connection.request("GET", path, headers={"cookie": cookie})
    content = connection.getresponse().read()
    return time.perf_counter() - begun, len(content)


def messages(address: str, cookie: str, numbers: list[int], seconds: float) -> list[int]:
    """Return the bytes of each message of the comparison of these runs."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    runs = ",".join(f"{number}@0.0" for number in numbers)
    connection.request("GET", f"/feed?runs={runs}&parts=1", headers={"cookie": cookie})
    answer, sizes, until = connection.getresponse(), [], time.monotonic() + seconds
    while time.monotonic() < until:
        line = answer.readline()
        if line.startswith(b"data:"):
            sizes.append(len(line))
    connection.close()
    return sizes


def first_paint(address: str, rows: str = "table.runs tbody tr >> nth=5") -> dict[str, float] | None:
    """Return when Chromium has painted a page with all runs, and when its rows are there, in seconds."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if not CHROMIUM.exists():
        return None
    with sync_playwright() as start:
        browser = start.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        begun = time.perf_counter()
        page.goto(address)
        page.locator(rows).first.wait_for(timeout=300_000)
        shown = time.perf_counter() - begun
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime") / 1e3
        browser.close()
    return {"first paint": paint, "rows of runs": shown}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--points", type=int, default=2000)
    parser.add_argument("--others", help="an interpreter that has tensorboard or mlflow")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = fill(Path(folder), given.runs, given.points)
        stop = threading.Event()
        command = [sys.executable, "-m", "tenfold", "board", "--runs", folder, "--port", "0", "--no-open"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
        try:
            address = (server.stdout.readline() if server.stdout else "").split()[-1]
            measure(address, store, stop, psutil.Process(server.pid), given)
        finally:
            stop.set()
            server.terminate()
            server.wait()
    compare(given)


def compare(given: argparse.Namespace) -> None:
    """Print the same of other tools, or why they are missing."""
    boards, missing = find_boards(given.others)
    for board in boards:
        measured = measure_board(board, given.runs, given.points, first_paint)
        print(board.name)
        for name in ("first paint", "rows of runs"):
            if name in measured:
                print(f"  {name:<35} {measured[name]:6.2f} s   (Chromium)")
        print(f"  a refresh, {SELECTED} runs compared                 {measured['bytes'] / 1e3:8.1f} kB")
    for reason in missing:
        print(f"skipped {reason}")


def measure(
    address: str, store: Store, stop: threading.Event, process: psutil.Process, given: argparse.Namespace
) -> None:
    place, token = urlsplit(address), address.partition("token=")[2]
    connection = http.client.HTTPConnection(place.hostname or "", place.port)
    connection.request("GET", f"/?token={token}")
    cookie = connection.getresponse().headers["set-cookie"].partition(";")[0]
    print(f"{given.runs:,} runs with {given.points:,} points each")

    def show(name: str, path: str) -> None:
        seconds, size = ask(address, path, cookie)
        print(f"  {name:<35} {seconds:6.2f} s   {size / 1e3:8.0f} kB")

    show("data of the table, first time", "/data/runs")
    show("data of the table, again", "/data/runs")
    for name, value in (first_paint(address) or {}).items():
        print(f"  {name:<35} {value:6.2f} s   (Chromium)")
    show("page of one run", f"/run/{given.runs}")
    numbers = record(store, stop)
    time.sleep(2)
    sizes = messages(address, cookie, numbers, 10)[2:]
    average = sum(sizes) / len(sizes) / 1e3
    print(
        f"  a message, {RUNNING} running runs compared          {average:8.1f} kB   largest {max(sizes) / 1e3:.1f} kB"
    )
    print(f"  memory of the server                         {process.memory_info().rss / 1e6:8.0f} MB")


if __name__ == "__main__":
    main()
