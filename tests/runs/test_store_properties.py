"""Whatever fails whenever, what was recorded stays recorded: any order of writers, a fault at any write."""

import os
import sqlite3
import tempfile
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_store import DIGITS

from tenfold.common import files
from tenfold.errors import StoreError
from tenfold.runs import Store, checkpoint, store
from tenfold.runs.events import EpochEnded

WRITERS = 10
COMMON = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


class Fault(BaseException):
    """The process dies here."""


class Faults:
    """Lets the k-th call of anything that writes fail: as a full disk does, or as if the process were killed."""

    def __init__(self, at: int, *, kill: bool) -> None:
        self.left = at
        self.kill = kill

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0 or (self.left < 0 and self.kill):
            raise Fault if self.kill else OSError(28, "No space left on device")


def connecting(faults: Faults):
    class Connection(sqlite3.Connection):
        def execute(self, *args):
            self._check(args[0])
            return super().execute(*args)

        def executemany(self, *args):
            self._check(args[0])
            return super().executemany(*args)

        def commit(self):
            self._check("COMMIT")
            super().commit()

        def __exit__(self, kind, *rest):
            if kind is None:
                try:
                    self._check("COMMIT")
                except BaseException:
                    self.rollback()
                    raise
            return super().__exit__(kind, *rest)

        def _check(self, statement):
            if statement.startswith(("INSERT", "UPDATE", "BEGIN", "COMMIT")):
                try:
                    faults()
                except OSError:
                    raise sqlite3.OperationalError("database or disk is full") from None

    original = sqlite3.connect
    return lambda *args, **kwargs: original(*args, factory=Connection, **kwargs)


@COMMON
@given(
    operations=st.lists(
        st.tuples(st.integers(0, WRITERS - 1), st.sampled_from(["append", "update", "end", "die"])), max_size=40
    )
)
def test_any_order_of_ten_writers_loses_nothing(operations):
    with tempfile.TemporaryDirectory() as folder:
        writers: dict[int, tuple[Store, int]] = {}
        recorded: dict[int, list[float]] = {}
        expected: dict[int, str] = {}
        at = 0.0
        for who, what in operations:
            if who not in writers:
                opened = Store(folder)
                number = opened.create(DIGITS, kind="train", metadata={"who": who})
                writers[who], recorded[number], expected[number] = (opened, number), [], "running"
            opened, number = writers[who]
            at += 1
            if what == "append":
                opened.append(number, [EpochEnded(at=at)])
                recorded[number].append(at)
            elif what == "update":
                opened.update(number, result={"at": at})
            else:
                if what == "end":
                    opened.update(number, result={"at": at}, status="finished")
                else:
                    opened.release(number)
                expected[number] = "finished" if what == "end" else "interrupted"
                del writers[who]
        reader = Store(folder)
        assert {row["id"]: row["status"] for row in reader.runs()} == expected
        for number, times in recorded.items():
            assert [event.at for event in reader.events(number)] == times


@COMMON
@given(at=st.integers(1, 40), kill=st.booleans())
def test_a_fault_at_any_write_loses_nothing_that_was_recorded(at, kill):
    """Train five epochs with events, checkpoints and a result; then look at what is left, and resume."""
    with tempfile.TemporaryDirectory() as folder:
        runs = Store(folder)
        done: list[int] = []
        committed, status, number = 0, "", 0
        faults = Faults(at, kill=kill)
        fsync, replace = os.fsync, Path.replace

        def syncing(descriptor):
            faults()
            fsync(descriptor)

        def replacing(self, target):
            faults()
            return replace(self, target)

        with (
            patch.object(files.os, "fsync", syncing),
            patch.object(Path, "replace", replacing),
            patch.object(store.sqlite3, "connect", connecting(faults)),
        ):
            try:
                number = runs.create(DIGITS, kind="train", metadata={})
                path = runs.path(number, "mlp-digits") / "checkpoint"
                for epoch in range(1, 6):
                    with suppress(StoreError):
                        runs.append(number, [EpochEnded(at=float(epoch), epoch=epoch - 1)])
                        done.append(epoch)
                    with suppress(StoreError):
                        checkpoint.save_tensors({"epoch": epoch}, path / checkpoint.file_name(epoch, 0))
                        checkpoint.commit(path, {"epoch": epoch, "workers": 1})
                        committed = epoch
                with suppress(StoreError):
                    runs.update(number, result={"epochs": 5}, status="finished")
                    status = "finished"
            except (Fault, StoreError):
                pass
        died = Store(folder)
        del runs
        if not number:
            assert [row["status"] for row in died.runs()] in ([], ["interrupted"])
            return
        assert [round(event.at) for event in died.events(number)] == done
        record = died.find(number)
        assert record["status"] == (status or "interrupted")
        manifest, problem = checkpoint.find_undamaged(path)
        assert problem == ""
        left = manifest["epoch"] if manifest else 0
        assert left >= committed
        if left:
            assert checkpoint.load_tensors(path / checkpoint.file_name(left, 0)) == {"epoch": left}
        if not status:
            died.claim_and_restart(number, epoch=left)
            assert [round(event.at) for event in died.events(number)] == [item for item in done if item <= left]
