import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_store import some_events

from tenfold.runs import events
from tenfold.runs.events import Clock, Lifecycle, Metric, Span, as_row

finite = st.floats(allow_nan=False, allow_infinity=False)
any_event = st.one_of(
    st.builds(Lifecycle, at=finite, what=st.text(), detail=st.text(), epoch=st.integers(), worker=st.integers()),
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
    assert events.TYPES[row.pop("type")](**row) == event


def test_every_event_says_when_and_in_which_epoch_and_by_whom():
    for event in some_events():
        assert {"at", "epoch", "worker"} <= {field.name for field in dataclasses.fields(event)}


@pytest.mark.parametrize("event", some_events(), ids=lambda event: type(event).__name__)
def test_an_event_cannot_be_changed(event):
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.at = 3.0


def test_a_clock_goes_forward_from_where_it_stood(monkeypatch):
    now = 100.0
    monkeypatch.setattr(events.time, "perf_counter", lambda: now)
    fresh, resumed = Clock(), Clock(elapsed=7.5)
    assert (fresh.now(), resumed.now()) == (0.0, 7.5)
    now = 102.0
    assert (fresh.now(), resumed.now()) == (2.0, 9.5)
