"""What other processes do to a store of runs. Imported by them, so it is a module of its own."""

import itertools
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tenfold.errors import StoreError
from tenfold.experiment import Experiment
from tenfold.runs import Store
from tenfold.runs.claim import Claim
from tenfold.runs.events import EpochEnded, Metric

DIGITS = Experiment(model="mlp", data="digits")


def write_run(folder: Path, who: int, steps: int, begin: Any) -> None:
    """Record a whole run, and begin when the others do."""
    begin.wait(60)
    store = Store(folder)
    number = store.create(DIGITS, kind="train", metadata={"who": who})
    for step in range(steps):
        store.append(number, [Metric(at=step, name="m", value=who, part="train", step=step, epoch=0, seconds=0)] * 5)
    store.update(number, result={"steps": steps}, status="finished")


def write_without_end(folder: Path, answer: Connection) -> None:
    """Record one event of a run after another; send its number after the first."""
    store = Store(folder)
    number = store.create(DIGITS, kind="train", metadata={})
    for at in itertools.count(1):
        store.append(number, [EpochEnded(at=float(at))])
        if at == 1:
            answer.send(number)


def restart(folder: Path, number: int, answer: Connection) -> None:
    """Claim a run, and send what is said about it."""
    try:
        Store(folder).claim_and_restart(number, epoch=0)
    except StoreError as error:
        answer.send(str(error))


def take_over(folder: Path, number: int) -> None:
    """Claim a run, whoever works on it."""
    Store(folder).claim(number, force=True)


def hold_claim(folder: Path, answer: Connection) -> None:
    """Claim the folder of a run, send whether it could be had, and keep it."""
    held = Claim.take(folder)
    answer.send(held is not None)
    time.sleep(60)
