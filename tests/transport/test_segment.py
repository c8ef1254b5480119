import os
from contextlib import closing
from pathlib import Path

import pytest
import torch

from tenfold.errors import MachineError, TrainingError
from tenfold.machine.liveness import is_alive
from tenfold.transport import Segment, SharedMemoryTransport, clean_up_orphans
from tenfold.transport.segment import LINE, PAGE, LockedIntegers, StopReason

NO_PROCESS = 2**22 + 1
"""Linux gives no process a higher number than 2**22."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_one_writes_another_reads(dtype: torch.dtype) -> None:
    with closing(Segment.create(3, 1000, dtype)) as mine, closing(Segment.attach(mine.name)) as theirs:
        assert (theirs.size, theirs.numel, theirs.dtype) == (3, 1000, dtype)
        for rank in range(3):
            mine.buffers[rank] = rank + 0.5
            mine.words[mine.counter_at(rank)] = rank
            mine.mailboxes[rank] = -rank
        for rank in range(3):
            assert set(theirs.buffers[rank]) == {rank + 0.5}
            assert theirs.words[theirs.counter_at(rank)] == rank
            assert set(theirs.mailboxes[rank]) == {-rank}


def test_nothing_overlaps_and_buffers_begin_on_pages() -> None:
    with closing(Segment.create(5, 77)) as segment:
        places = [0, LINE, *(at(rank) for rank in range(5) for at in (segment.counter_at, segment.pid_at))]
        assert len({place // LINE for place in places}) == 12
        starts = [segment.buffers[rank].ctypes.data for rank in range(5)]
        assert all(start % PAGE == 0 for start in starts)
        assert segment.mailboxes.ctypes.data + segment.mailboxes.nbytes <= starts[0]


def test_memory_without_a_file_leaves_none() -> None:
    def files() -> list[Path]:
        return sorted(Path("/dev/shm").glob("tenfold*"))

    before = files()
    with closing(Segment.create(2, 10)) as segment, SharedMemoryTransport(Segment.attach(segment.name), 0):
        assert "memfd" in str(Path(segment.name).readlink())
        assert files() == before
    assert not Path(segment.name).exists()


def test_the_buffer_outlives_the_transport() -> None:
    with closing(Segment.create(1, 4)) as segment, SharedMemoryTransport(segment, 0) as transport:
        weights = transport.buffer
    del transport, segment
    weights.fill_(3)
    assert weights.sum() == 12


def test_a_file_goes_with_its_creator(tmp_path: Path) -> None:
    with closing(Segment.create(2, 10, directory=tmp_path)) as segment:
        with closing(Segment.attach(segment.name)):
            assert [path.name.split("-")[:2] for path in tmp_path.iterdir()] == [["tenfold", str(os.getpid())]]
        assert Path(segment.name).exists()
    assert list(tmp_path.iterdir()) == []


def test_orphans_are_those_whose_creator_is_dead(tmp_path: Path) -> None:
    kept = [tmp_path / f"tenfold-{os.getpid()}-abc", tmp_path / "tenfold-notes-x", tmp_path / f"other-{NO_PROCESS}-x"]
    orphan = tmp_path / f"tenfold-{NO_PROCESS}-abc"
    for path in [*kept, orphan]:
        path.touch()
    assert clean_up_orphans(tmp_path) == [orphan]
    assert sorted(tmp_path.iterdir()) == sorted(kept)


def test_what_does_not_fit_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="memory"):
        Segment.create(1000, 10**12)
    with pytest.raises(MachineError, match="supported: float32, float64"):
        Segment.create(2, 10, torch.int8)
    with pytest.raises(TrainingError, match="cannot be opened"):
        Segment.attach(str(tmp_path / "gone"))
    (tmp_path / "other").write_bytes(bytes(PAGE))
    with pytest.raises(TrainingError, match="version"):
        Segment.attach(str(tmp_path / "other"))


def test_the_first_reason_stands() -> None:
    with closing(Segment.create(3, 1)) as segment:
        segment.stop(StopReason.DIED, 2)
        segment.abort()
        assert segment.stop_reason == (StopReason.DIED, 2)


def test_fenced_words_are_words(tmp_path: Path) -> None:
    path = tmp_path / "locks"
    path.touch()
    fd = os.open(path, os.O_RDWR)
    words = LockedIntegers([1, 2, 3], fd)
    words[1] = 7
    assert [words[index] for index in range(3)] == [1, 7, 3]
    os.close(fd)


def test_who_is_alive() -> None:
    assert is_alive(os.getpid())
    assert not is_alive(NO_PROCESS)
