"""TensorBoard and MLflow on the same runs: how long their pages take, and what a refresh of ten runs weighs.

Each is started from another interpreter, as neither is needed here. The bytes of a refresh are those of the requests
that their pages send for one chart of ten runs; both fetch the whole history each time.
"""

import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SELECTED = 10
START_SECONDS = 120
LISTED_SECONDS = 600

WRITE_EVENTS = """
import sys
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter(sys.argv[1])
for step in range(int(sys.argv[2])):
    value = Summary.Value(tag="loss", simple_value=2 / (1 + step / 50))
    writer.add_event(Event(step=step, wall_time=1.7e9 + step / 10, summary=Summary(value=[value])))
writer.close()
"""

WRITE_ROWS = """
import sqlite3, sys
from mlflow import MlflowClient
file, runs, points = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
client = MlflowClient("sqlite:///" + file)
for number in range(runs):
    run = client.create_run("0", run_name=f"run-{number}").info.run_id
    client.log_metric(run, "loss", 2 / (1 + points / 50), step=points)
    client.set_terminated(run)
    with sqlite3.connect(file) as connection:
        rows = ((run, step, 2 / (1 + step / 50), 1700000000000 + 100 * step) for step in range(points))
        connection.executemany(
            "INSERT INTO metrics (key, run_uuid, step, value, timestamp, is_nan) VALUES ('loss', ?, ?, ?, ?, 0)", rows)
"""


class OtherBoard(ABC):
    """Another tool that shows runs in a browser."""

    name: str
    module: str

    def __init__(self, python: str) -> None:
        self.python = python

    @abstractmethod
    def write(self, folder: Path, runs: int, points: int) -> None:
        """Write runs in the tool's own format."""

    @abstractmethod
    def command(self, folder: Path, port: int) -> list[str]:
        """Return what starts its server."""

    @abstractmethod
    def page(self, address: str) -> str:
        """Return the address of the page that lists all runs."""

    @abstractmethod
    def listed(self, address: str, runs: int) -> bool:
        """Return whether the server knows all runs."""

    @abstractmethod
    def refresh(self, address: str) -> int:
        """Return the bytes of a refresh of ten runs."""

    @contextmanager
    def served(self, folder: Path, runs: int) -> Iterator[str]:
        """Give the address of its server once it knows all runs."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server = subprocess.Popen(self.command(folder, port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        address = f"http://127.0.0.1:{port}"
        try:
            _wait(lambda: bool(ask(address)), START_SECONDS)
            _wait(lambda: self.listed(address, runs), LISTED_SECONDS)
            yield address
        finally:
            server.terminate()
            server.wait()


class TensorBoard(OtherBoard):
    """TensorBoard, which reads event files."""

    name, module = "TensorBoard", "tensorboard"

    def write(self, folder: Path, runs: int, points: int) -> None:
        """Write one file of events, and copy it for the other runs."""
        first = folder / "run-0"
        subprocess.run([self.python, "-c", WRITE_EVENTS, str(first), str(points)], check=True)
        for number in range(1, runs):
            shutil.copytree(first, folder / f"run-{number}")

    def command(self, folder: Path, port: int) -> list[str]:
        """Return the command; it keeps a sample of 1,000 points of each run, its default."""
        return [self.python, "-m", "tensorboard.main", "--logdir", str(folder), "--port", str(port)]

    def page(self, address: str) -> str:
        """Return the page of time series."""
        return f"{address}/#timeseries"

    def listed(self, address: str, runs: int) -> bool:
        """Ask for the names of all runs."""
        return len(json.loads(ask(f"{address}/data/runs"))) >= runs

    def refresh(self, address: str) -> int:
        """Ask for the series of all runs of the folder, as its page does."""
        form = urllib.parse.urlencode({"requests": json.dumps([{"plugin": "scalars", "tag": "loss"}])}).encode()
        return len(ask(f"{address}/experiment/defaultExperimentId/data/plugin/timeseries/timeSeries", form))


class MLflow(OtherBoard):
    """MLflow with a database file."""

    name, module = "MLflow", "mlflow"

    def write(self, folder: Path, runs: int, points: int) -> None:
        """Create runs by its client, and insert their points."""
        subprocess.run(
            [self.python, "-c", WRITE_ROWS, str(folder / "mlflow.db"), str(runs), str(points)],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def command(self, folder: Path, port: int) -> list[str]:
        """Return the command."""
        store = f"sqlite:///{folder / 'mlflow.db'}"
        return [self.python, "-m", "mlflow", "ui", "--backend-store-uri", store, "--port", str(port), "--workers", "1"]

    def page(self, address: str) -> str:
        """Return the page of the default experiment."""
        return f"{address}/#/experiments/0/runs"

    def listed(self, address: str, runs: int) -> bool:
        """Its database knows all runs from the beginning."""
        return bool(self._runs(address)) and runs > 0

    def refresh(self, address: str) -> int:
        """Ask for the histories of ten runs, as its chart does."""
        fields = [("metric_key", "loss"), ("max_results", "2500")]
        fields += [("run_ids", run) for run in self._runs(address)[:SELECTED]]
        query = urllib.parse.urlencode(fields)
        return len(ask(f"{address}/ajax-api/2.0/mlflow/metrics/get-history-bulk-interval?{query}"))

    def _runs(self, address: str) -> list[str]:
        wanted = json.dumps({"experiment_ids": ["0"], "max_results": SELECTED}).encode()
        found = json.loads(ask(f"{address}/ajax-api/2.0/mlflow/runs/search", wanted, "application/json"))
        return [run["info"]["run_id"] for run in found.get("runs", [])]


BOARDS: tuple[type[OtherBoard], ...] = (TensorBoard, MLflow)


def find_boards(python: str | None) -> tuple[list[OtherBoard], list[str]]:
    """Return the boards that this interpreter has, or those on the path, and a reason for each that is missing."""
    found: list[OtherBoard] = []
    missing: list[str] = []
    for board in BOARDS:
        interpreter = python or _interpreter_of(board.module)
        if interpreter is None:
            missing.append(f"{board.name}: no command `{board.module}`; name an interpreter that has it with --others")
        elif subprocess.run([interpreter, "-c", f"import {board.module}"], capture_output=True).returncode:
            missing.append(f"{board.name}: {interpreter} has no package {board.module}")
        else:
            found.append(board(interpreter))
    return found, missing


def measure_board(board: OtherBoard, runs: int, points: int, paint: Any) -> dict[str, float]:
    """Return the seconds of the first paint and of the list of runs, and the bytes of a refresh of ten runs."""
    measured: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        board.write(folder, runs, points)
        with board.served(folder, runs) as address:
            measured |= paint(board.page(address), "text=/run-\\d+/") or {}
            if board.name == "MLflow":
                measured["bytes"] = board.refresh(address)
    if "bytes" not in measured:  # TensorBoard answers for all runs of its folder
        with tempfile.TemporaryDirectory() as name:
            board.write(Path(name), SELECTED, points)
            with board.served(Path(name), SELECTED) as address:
                measured["bytes"] = board.refresh(address)
    return measured


def ask(address: str, body: bytes | None = None, kind: str = "application/x-www-form-urlencoded") -> bytes:
    """Return the answer to a request; empty while nobody answers."""
    try:
        request = urllib.request.Request(address, data=body, headers={"content-type": kind} if body else {})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())
    except OSError:
        return b""


def _interpreter_of(command: str) -> str | None:
    """Return the interpreter in the first line of a command on the path."""
    found = shutil.which(command)
    if found is None:
        return None
    first = Path(found).read_text(errors="replace").partition("\n")[0]
    return first.removeprefix("#!").strip() if first.startswith("#!") else None


def _wait(ready: Any, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if ready():
                return
        except ValueError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"the server did not answer within {seconds} s")
