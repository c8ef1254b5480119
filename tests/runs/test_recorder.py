import warnings
from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_store import new_run, some_events

from tenfold.errors import StoreError
from tenfold.runs import Recorder, recorder
from tenfold.runs.events import EpochEnded, Metric, Span, WorkerDropped, WorkerJoined
from tenfold.runs.recorder import chrome_trace


class FullDisk:
    """A store whose disk is full until it is told otherwise."""

    def __init__(self, store):
        self.store = store
        self.full = True
        self.handed = 0

    def keep_open(self):
        return self.store.keep_open()

    def release(self, run):
        self.store.release(run)

    def append(self, run, events, **kwargs):
        self.handed += len(events)
        self._check()
        self.store.append(run, events, **kwargs)

    def update(self, *args, **kwargs):
        self._check()
        self.store.update(*args, **kwargs)

    def _check(self):
        if self.full:
            raise StoreError("the disk is full")


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved."""
    times = {"now": 0.0}
    monkeypatch.setattr(recorder.time, "monotonic", lambda: times["now"])
    return times


def test_events_wait_for_company_and_are_recorded_together(tmp_path, clock):
    store, number = new_run(tmp_path)
    record = Recorder(store, number)
    first, second, third = some_events()
    record(first)
    record(second)
    assert list(store.events(number)) == []
    clock["now"] += recorder.FLUSH_SECONDS + 0.1
    record(third)
    assert list(store.events(number)) == [first, second, third]


def test_closing_records_what_waits_and_how_it_ended(tmp_path, clock):
    store, number = new_run(tmp_path)
    record = Recorder(store, number)
    for event in some_events():
        record(event)
    record.close(result={"seconds": 1.0}, status="failed", error="why")
    found = store.find(number)
    assert (found["status"], found["error"], found["result"]) == ("failed", "why", {"seconds": 1.0})
    assert list(store.events(number)) == some_events()


def test_a_full_disk_is_told_once_and_the_events_are_kept_and_tried_again(tmp_path, clock):
    store, number = new_run(tmp_path)
    disk = FullDisk(store)
    record = Recorder(disk, number)
    assert record.problem == ""

    def train():
        for event in some_events():
            record(event)
            record.flush()

    with pytest.warns(UserWarning, match="continues") as warned:
        train()
    assert len(warned) == 1
    assert record.problem == "the disk is full"
    disk.full = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record.flush()
    assert list(store.events(number)) == some_events()


def test_a_disk_that_stays_full_ends_no_training(tmp_path, clock):
    store, number = new_run(tmp_path)
    record = Recorder(FullDisk(store), number)
    record(some_events()[0])
    with pytest.warns(UserWarning, match="training continues") as warned:
        record.close(result={}, status="finished")
    assert len(warned) == 1
    assert store.find(number)["status"] == "interrupted", "it can be resumed, here and at once"


def test_a_disk_that_stays_full_takes_little_time_and_memory(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(recorder, "MOST_WAITING", 1000)
    store, number = new_run(tmp_path)
    disk = FullDisk(store)
    record = Recorder(disk, number)
    steps, epochs = 20_000, 100

    def train():
        for step in range(steps):
            clock["now"] += 0.05
            record(Span(at=float(step), kind="compute", seconds=0.1))
            if step % (steps // epochs) == 0:
                record(EpochEnded(at=float(step), epoch=step * epochs // steps))
                record.flush_unless_failing()

    with pytest.warns(UserWarning, match="training continues"):
        train()
    assert disk.handed < steps, "what waits is handed over and over"
    disk.full = False
    assert record.close(result={}, status="finished")
    events = list(store.events(number))
    assert [event.epoch for event in events if isinstance(event, EpochEnded)] == list(range(epochs))
    assert len(events) <= 1000 + epochs
    assert "not recorded" in events[-1].text


def test_other_problems_are_told_once_too(tmp_path):
    store, number = new_run(tmp_path)
    record = Recorder(store, number)
    with pytest.warns(UserWarning, match="no checkpoint; training continues"):
        record.report("no checkpoint")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record.report("still no checkpoint")
    assert record.problem == "still no checkpoint"


def test_what_will_be_repeated_is_taken_back_but_for_who_was_lost(tmp_path, clock):
    store, number = new_run(tmp_path)
    record = Recorder(store, number)
    kept = [EpochEnded(at=1.0, epoch=0), WorkerDropped(at=2.0, text="killed", epoch=1, worker=1)]
    kept.append(WorkerJoined(at=2.5, text="replaced", epoch=1, worker=1))
    repeated = [EpochEnded(at=3.0, epoch=1)]
    odd = Metric(at=3.0, name="loss", value=float("nan"), part="train", step=1, epoch=1, seconds=1.0)
    for event in [*kept, *repeated, odd]:
        record(event)
    record.flush()
    store.restart(number, epoch=1)
    assert list(store.events(number)) == kept


def spans_of(trace):
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def test_a_span_becomes_an_event_in_microseconds():
    (event,) = spans_of(chrome_trace([Span(at=0.5, kind="compute", seconds=0.002, worker=3)]))
    assert (event["name"], event["tid"], event["ts"], event["dur"]) == ("compute", 3, 500_000, 2000)
    assert event["args"]["count"] == 1


def test_merged_spans_of_a_window_lie_end_to_end():
    window = [Span(at=1.0, kind=kind, seconds=0.25, count=20) for kind in ("data", "compute", "wait")]
    events = spans_of(chrome_trace(window))
    assert [event["ts"] for event in events] == [1_000_000, 1_250_000, 1_500_000]
    assert {event["args"]["count"] for event in events} == {20}


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["data", "compute", "wait"]), st.integers(1, 9))))
def test_nothing_is_lost_and_windows_never_overlap(drawn):
    spans = [Span(at=0.0, kind=kind, seconds=seconds, count=2, worker=worker) for worker, kind, seconds in drawn]
    lanes = defaultdict(list)
    for event in spans_of(chrome_trace(spans)):
        lanes[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert sum(map(len, lanes.values())) == len(spans)
    for lane in lanes.values():
        assert all(end == pytest.approx(begin) for (_, end), (begin, _) in pairwise(lane))
