import json
import re

import pytest
from made_runs import make_run, make_virtual_run

from tenfold.reports.forecast import TimePart, Twin
from tenfold.reports.pages.run_pages import render_report
from tenfold.reports.related_runs import find_twin

SHORT = {"steps_per_epoch": 40, "epochs": 1, "workers": 2}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    times = {"data": 1.0, "compute": 3.0, "wait": 0.5, "communicate": 0.0, "evaluate": 2.0, "start": 1.0}
    told = {"data": 0.0, "compute": 5.0, "wait": 0.25, "communicate": 0.1, "evaluate": 2.0, "start": 1.5}
    real = make_run(folder, **SHORT, result={"times": times, "seconds": 4.6})
    predicted = {"times": told, "seconds": 5.5, "interval": [5.0, 6.0]}
    virtual = make_virtual_run(folder, **SHORT, cluster="here", result=predicted)
    return real, virtual


@pytest.fixture(scope="module")
def twin(runs):
    return Twin(*runs, 0.0)


def test_the_error_is_signed_and_relative_to_what_was_measured():
    assert TimePart("", 2.0, 1.5).error == -0.25
    assert TimePart("", 2.0, 3.0).error == 0.5
    assert TimePart("", 0.0, 1.0).error is None
    assert TimePart("", 1.0, None).error is None


def test_parts_of_the_time(twin):
    assert {part.name: part.error for part in twin.parts} == pytest.approx(
        {
            "data and computing": 0.25,
            "waiting": -0.5,
            "communication": None,
            "evaluation": 0.0,
            "startup": 0.5,
            "training, total": 0.9 / 4.6,
        }
    )
    assert twin.error == pytest.approx(0.9 / 4.6)


def test_the_table_says_measured_and_predicted(twin):
    text = str(twin)
    same = "largest difference between the weights  0.0, bit for bit the same"
    for expected in (same, "measured", "predicted", "-50.0%", "+19.6%"):
        assert expected in text
    assert "5.50 s [5.00-6.00]" in text
    assert "the measured time is outside" in text


def test_a_target_has_a_row_of_its_own(tmp_path):
    reached = [{"seconds": seconds, "seconds_to_target": seconds, "times": {}} for seconds in (4.0, 5.0)]
    real = make_run(tmp_path, **SHORT, target=0.9, result=reached[0])
    virtual = make_virtual_run(tmp_path, **SHORT, target=0.9, cluster="here", result=reached[1])
    twin = Twin(real, virtual, 0.0)
    assert [(part.name, part.error) for part in twin.parts][-2:] == [
        ("training to target", 0.25),
        ("training, total", 0.25),
    ]
    assert "training to target: until target 0.9" in str(twin)


def test_other_weights_are_said(runs):
    apart = Twin(*runs, 1.5e-7)
    assert not apart.same_weights
    assert "1.5e-07, not the same" in str(apart)
    assert "1.5e-07" in repr(apart)


def test_json_holds_all_numbers(twin):
    read = json.loads(twin.to_json())
    assert read["weights_largest_difference"] == 0.0
    assert read["parts"][-1] == {"name": "training, total", "measured": 4.6, "predicted": 5.5, "error": twin.error}
    assert read["interval"] == [5.0, 6.0]


def test_the_trace_has_two_processes(twin):
    events = twin.trace()["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {0: "measured", 1: "predicted"}
    spans = [[event for event in events if event["ph"] == "X" and event["pid"] == pid] for pid in (0, 1)]
    assert [len(span) for span in spans] == [len(list(run.spans())) for run in (twin.real, twin.virtual)]
    assert json.loads(json.dumps(twin.trace())) == twin.trace()


def test_the_page_puts_lanes_above_each_other(twin, tmp_path):
    page = twin.report(tmp_path / "twin.html").read_text(encoding="utf-8")
    for expected in (
        "worker 1, measured",
        "worker 1, predicted",
        "largest difference between the weights",
        "bit for bit the same",
        "predicted [5.00-6.00]",
        "Every time on this page was measured, unless marked as predicted or simulated.",
        f"tenfold-twin-{twin.real.id}-{twin.virtual.id}-trace.json",
    ):
        assert expected in page
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))


def test_runs_without_times_make_a_table(tmp_path):
    empty = Twin(make_run(tmp_path, empty=True), make_virtual_run(tmp_path, empty=True, calibrated=False), 0.0)
    empty.virtual.result.pop("interval")
    assert empty.table().rows == [["training, total", "–", "–", "–"]]
    assert any(note.startswith("uncalibrated") for note in empty.notes())
    assert 'data-plot="twin"' not in empty.report(tmp_path / "twin.html").read_text(encoding="utf-8")


def test_a_virtual_twin_shows_the_measured_steps_below_its_own(tmp_path):
    other = make_run(tmp_path, **SHORT, kind="twin", lr=0.3)
    real = make_run(tmp_path, **SHORT, kind="twin")
    virtual = make_virtual_run(tmp_path, **SHORT, cluster="here", kind="twin")
    assert find_twin(virtual).id == real.id
    assert "measured in its twin, run 2" in render_report([virtual])
    assert "Predicted and measured" not in render_report([real])
    assert find_twin(make_virtual_run(tmp_path, **SHORT, cluster="here")) is None
    assert find_twin(make_virtual_run(tmp_path, **SHORT, cluster="here", kind="twin", lr=0.3)).id == other.id
