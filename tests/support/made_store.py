"""Stores and events for tests, and what is refused or damaged in them."""

import pytest

import tenfold
from tenfold.errors import StoreError
from tenfold.experiment import Experiment
from tenfold.runs import Store
from tenfold.runs.events import EpochEnded, Metric, Span

DIGITS = Experiment(model="mlp", data="digits")


def some_events(epoch=0, at=1.0):
    return [
        EpochEnded(at=at, epoch=epoch),
        Metric(at=at, name="loss", value=0.5, part="train", step=10, epoch=epoch, seconds=at),
        Span(at=at, kind="compute", seconds=0.25, count=10, epoch=epoch, worker=1),
    ]


def new_run(folder, experiment=DIGITS, events=()):
    """Return a store in the folder with one new run in it, and its number."""
    store = Store(folder)
    number = store.create(experiment, kind="train", metadata={"cores": 2})
    store.append(number, events)
    return store, number


def refused(action, *args, **kwargs):
    """Return the words of the StoreError that an action raises."""
    with pytest.raises(StoreError) as caught:
        action(*args, **kwargs)
    return str(caught.value)


def flip(path, place):
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= 1 << (place % 8)
    path.write_bytes(bytes(content))


def train_interrupted_and_finished(folder, **fields):
    """Make a store with a run that was interrupted after its first epoch, and one like it that finished."""

    def stop(event):
        if isinstance(event, EpochEnded) and event.epoch == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tenfold.train(**fields, runs=folder, listen=stop)
    tenfold.train(**fields, runs=folder)
    return folder
