import json
from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import make_run

from tenfold.runs import Metric, Span, Warned
from tenfold.runs.recorder import chrome_trace


def spans_of(trace):
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def test_a_span_becomes_an_event_in_microseconds():
    (event,) = spans_of(chrome_trace([Span(at=0.5, kind="compute", seconds=0.002, worker=3)]))
    assert (event["name"], event["tid"], event["ts"], event["dur"]) == ("compute", 3, 500_000, 2000)
    assert event["args"]["count"] == 1


def test_every_worker_has_a_named_lane():
    trace = chrome_trace([Span(at=0, kind="data", seconds=1, worker=worker) for worker in (1, 0)])
    names = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert names == {0: "worker 0", 1: "worker 1"}


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


def test_stages_are_marks_and_metrics_are_left_out():
    events = [
        Warned(at=1, text="slow"),
        Metric(at=1, name="loss", value=1, part="train", step=1, epoch=0, seconds=1),
    ]
    marks = [event for event in chrome_trace(events)["traceEvents"] if event["ph"] != "M"]
    assert [(mark["ph"], mark["name"], mark["args"]["text"]) for mark in marks] == [("i", "warning", "slow")]


def test_a_whole_run_is_json(tmp_path):
    run = make_run(tmp_path, workers=2, steps_per_epoch=100)
    trace = run.trace()
    assert json.loads(json.dumps(trace)) == trace
    assert len(spans_of(trace)) == sum(1 for _ in run.spans())
