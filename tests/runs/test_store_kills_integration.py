"""Ten processes write to one store, their system calls in any order, some killed at any: nothing recorded is lost."""

import mmap
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from made_store import DIGITS
from stepped_processes import can_trace, run

from tenfold.runs import Store, checkpoint
from tenfold.runs.events import EpochEnded

WRITERS, EPOCHS = 10, 2
CREATED, FINISHED = 1, 2 + 2 * EPOCHS
"""What a writer has done so far: 1 created the run, then an event and a checkpoint for each epoch, then the result."""
CALLS = 550
"""About as many system calls as a writer needs."""

pytestmark = pytest.mark.timeout(120)
needs_tracing = pytest.mark.skipif(not can_trace(), reason="processes cannot be traced here")


def write(folder: Path, who: int, done: mmap.mmap) -> None:
    """Record a run; what is done is noted in shared memory, which takes no system call."""
    store = Store(folder)
    number = store.create(DIGITS, kind="train", metadata={"who": who})
    done[who] += 1
    for epoch in range(1, EPOCHS + 1):
        store.append(number, [EpochEnded(at=float(epoch), epoch=epoch - 1)])
        done[who] += 1
        path = store.path(number, "mlp-digits") / "checkpoint"
        checkpoint.save_tensors({"epoch": epoch}, path / checkpoint.file_name(epoch, 0))
        checkpoint.commit(path, {"epoch": epoch, "workers": 1})
        done[who] += 1
    store.update(number, result={"epochs": EPOCHS}, status="finished")
    done[who] += 1


def check(folder: Path, done: mmap.mmap, killed: dict[int, int]) -> None:
    """Check that all that was done is there; what was under way may be there."""
    store = Store(folder)
    records = {record["metadata"]["who"]: record for record in store.records()}
    assert not any(record["problems"] for record in records.values())
    for who in range(WRITERS):
        assert who in killed or done[who] == FINISHED
        if who not in records:
            assert done[who] < CREATED
            continue
        record = records[who]
        assert (
            record["status"] == "finished" if done[who] == FINISHED else record["status"] in ("interrupted", "finished")
        )
        times = [event.at for event in store.events(record["id"]) if isinstance(event, EpochEnded)]
        assert times == [float(epoch) for epoch in range(1, len(times) + 1)]
        assert len(times) >= min(EPOCHS, done[who] // 2)
        path = store.path(record["id"], "mlp-digits") / "checkpoint"
        manifest, problem = checkpoint.find_undamaged(path)
        assert problem == ""
        left = manifest["epoch"] if manifest else 0
        assert left >= min(EPOCHS, (done[who] - 1) // 2)
        if left:
            assert checkpoint.load_tensors(path / checkpoint.file_name(left, 0)) == {"epoch": left}
        if record["status"] == "interrupted":
            store.claim_and_restart(record["id"], epoch=left)
    assert store.create(DIGITS, kind="train", metadata={"who": WRITERS}) > max(
        (r["id"] for r in records.values()), default=0
    )


@pytest.fixture(scope="module", autouse=True)
def _imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import here what each process would import, by thousands of system calls."""
    write(tmp_path_factory.mktemp("runs"), 0, mmap.mmap(-1, WRITERS))


@needs_tracing
@pytest.mark.parametrize("seed", range(3))
def test_ten_writers_of_which_some_are_killed_lose_nothing(seed: int, tmp_path: Path) -> None:
    chance, done = random.Random(seed), mmap.mmap(-1, WRITERS)
    works: list[Callable[[], None]] = [partial(write, tmp_path, who, done) for who in range(WRITERS)]
    kills = [(who, chance.randint(1, CALLS)) for who in chance.sample(range(WRITERS), chance.randint(3, 9))]
    check(tmp_path, done, run(works, seed=seed, kills=kills))
