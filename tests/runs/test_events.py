import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from looped import looped

from tenfold.runs import events
from tenfold.runs.events import (
    STAGES,
    Ended,
    FoldChanged,
    FoldsStarted,
    Lifecycle,
    Metric,
    Note,
    Recorded,
    Span,
    Stopwatch,
    Warned,
    WorkerDropped,
    as_row,
    from_row,
)

finite = st.floats(allow_nan=False, allow_infinity=False)
any_event = st.one_of(
    *(st.builds(stage, at=finite, text=st.text(), epoch=st.integers()) for stage in (Note, Warned, WorkerDropped)),
    st.builds(Recorded, at=finite, run=st.integers()),
    st.builds(Ended, at=finite, status=st.sampled_from(["finished", "failed", "interrupted"]), error=st.text()),
    st.builds(FoldsStarted, at=finite, mode=st.text(), names=st.lists(st.text()).map(tuple), epochs=st.integers()),
    st.builds(
        FoldChanged,
        at=finite,
        status=st.just("finished"),
        fold=st.integers(),
        repeat=st.integers(),
        node=st.integers(),
        metrics=st.dictionaries(st.text(), st.floats(allow_nan=False)),
    ),
    st.builds(
        Metric,
        at=finite,
        name=st.text(),
        value=finite,
        part=st.sampled_from(["train", "validation", "test"]),
        step=st.integers(),
        epoch=st.integers(),
        seconds=finite,
    ),
    st.builds(Span, at=finite, kind=st.sampled_from(["data", "wait"]), seconds=finite, count=st.integers()),
)


@settings(deadline=None, derandomize=True)
@given(any_event)
def test_an_event_comes_back_from_its_row(event):
    row = json.loads(json.dumps(as_row(event)))
    assert from_row(row) == event
    assert from_row(row | {"of_a_later_version": 1}) == event


def test_a_stopwatch_continues_from_where_it_stopped(monkeypatch):
    now = 100.0
    monkeypatch.setattr(events.time, "perf_counter", lambda: now)
    fresh, resumed = Stopwatch(), Stopwatch(elapsed=7.5)
    assert (fresh.now(), resumed.now()) == (0.0, 7.5)
    now = 102.0
    assert (fresh.now(), resumed.now()) == (2.0, 9.5)


def test_every_stage_can_be_read_back():
    assert {stage.KIND for stage in Lifecycle.__subclasses__()} == set(STAGES)


@looped(
    "row", [{}, {"type": "lifecycle"}, {"type": "lifecycle", "what": "new", "at": 1.0}, {"type": "span", "at": "now"}]
)
def test_a_row_that_cannot_be_read_is_named(row):
    with pytest.raises(ValueError, match="cannot read the event"):
        from_row(row)
