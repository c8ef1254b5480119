import csv
import io
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import made_prediction, make_run, make_virtual_run

from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.reports import forecast as knee
from tenfold.reports import plots
from tenfold.reports.forecast import Forecast, TimePart, Twin
from tenfold.reports.pages.run_pages import render_report
from tenfold.reports.related_runs import find_twin

POWERS = [2**power for power in range(11)]


def virtual(workers, **fields):
    return Experiment(engine="virtual", workers=workers, **fields)


def sweep(workers=POWERS, **options):
    return Forecast([(virtual(n), made_prediction(n, **options)) for n in workers])


@pytest.fixture(scope="module")
def forecast():
    rows = [(virtual(1), made_prediction(1, reasons=["One worker has nobody to talk to."]))]
    for n in POWERS[1:]:
        rows.append((virtual(n), made_prediction(n, reasons=["A <b>bold</b> reason."])))
        rows.append((virtual(n, strategy="butterfly"), made_prediction(n, talk=0.0002)))
    return Forecast(rows)


class TestTable:
    def test_speedup_is_against_one_worker_whatever_the_strategy(self, forecast):
        both = [row for row in forecast.rows if row.workers == 64]
        assert [row.speedup for row in both] == pytest.approx([100 / (row.seconds.mean or 1) for row in both])
        assert [row.efficiency for row in both] == pytest.approx([(row.speedup or 0) / 64 for row in both])

    def test_without_one_worker_there_is_no_speedup(self):
        alone = sweep([2, 4])
        assert [row.speedup for row in alone.rows] == [None, None]
        assert "no speedup because there is no prediction for one worker; add 1 to the workers" in alone.lines()

    def test_it_is_predicted_in_every_form(self, forecast):
        assert all("predicted" in row for row in forecast.text_table().rows)
        assert "times are predicted" in str(forecast)
        assert forecast.to_markdown().count("predicted") == len(forecast.rows)
        assert {row["clock"] for row in csv.DictReader(io.StringIO(forecast.to_csv()))} == {"predicted"}
        assert "predicted" in repr(forecast)

    def test_json_has_numbers_bounds_and_reasons(self, forecast):
        read = json.loads(forecast.to_json())
        row = read["rows"][1]
        assert row["seconds_low"] < row["seconds"] < row["seconds_high"]
        assert "accuracy" not in row
        assert "One worker has nobody to talk to. (1 worker)" in read["reasons"]
        assert len(read["explanation"]) == 2

    def test_uncalibrated_clocks_are_called_so(self):
        forecast = sweep([1, 2], calibrated=False)
        assert [row[4] for row in forecast.text_table().rows] == ["predicted, uncalibrated"] * 2
        assert any(note.startswith("uncalibrated: ") for note in forecast.lines())
        assert not any("uncalibrated" in note for note in sweep([1, 2]).lines())


class TestBend:
    def test_less_than_two_percent_faster_is_no_help(self):
        for faster, peak in ((1.01, 2), (1.05, None)):
            two = made_prediction(2, talk=0.0)
            four = replace(made_prediction(4, talk=0.0), seconds=two.seconds / faster)
            rows = [(virtual(1), made_prediction(1)), (virtual(2), two), (virtual(4), four)]
            ((_, group),) = knee.scaling_families(Forecast(rows).rows)
            found = knee.find_knee(group).peak
            assert (found.workers if found else None) == peak

    def test_workers_who_never_meet_do_not_count(self):
        strangers = replace(made_prediction(8), bytes_per_worker=made_prediction(8).bytes_per_worker * 0, seconds=1e-3)
        rows = [(virtual(n), made_prediction(n)) for n in (1, 2, 4)] + [(virtual(8), strangers)]
        (sentence,) = Forecast(rows).explanation()
        assert "keeps growing up to 4 workers" in sentence
        assert sentence.endswith("With 8 or more, training ends before the first round; these are not counted.")
        assert knee.rows_with_rounds(Forecast([rows[0], rows[3]]).rows)[-1].workers == 8

    @given(st.floats(0, 10), st.lists(st.sampled_from(POWERS[1:]), min_size=2, unique=True))
    def test_it_is_the_first_of_both(self, talk, workers):
        ((_, group),) = knee.scaling_families(sweep([1, *sorted(workers)], talk=talk).rows)
        found = knee.find_knee(group)
        for row in group:
            before = found.first is None or row.workers < found.first.workers
            if before:
                assert row.shares["communicate"] + row.shares["wait"] <= 0.5
                assert row is group[-1] or min(member.seconds.mean for member in group) < row.seconds.mean
        assert ("levels off" in knee.explain_knees([("x", group)])[0]) == (found.first is not None)


def test_the_band_is_the_speedup_at_both_ends_of_the_interval():
    row = sweep([1, 4]).rows[1]
    low, high = plots.speedup_bounds(row)
    assert (low, high) == pytest.approx((row.speedup / 1.06, row.speedup / 0.95))


class TestPage:
    def test_no_setting_is_explained(self, tmp_path):
        with pytest.raises(ExperimentError, match="no prediction to report"):
            Forecast([]).report(tmp_path / "page.html")
        assert Forecast([]).to_json()


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


def test_a_virtual_twin_shows_the_measured_steps_below_its_own(tmp_path):
    other = make_run(tmp_path, **SHORT, kind="twin", lr=0.3)
    real = make_run(tmp_path, **SHORT, kind="twin")
    virtual = make_virtual_run(tmp_path, **SHORT, cluster="here", kind="twin")
    assert find_twin(virtual).id == real.id
    assert "measured in its twin, run 2" in render_report([virtual])
    assert "Predicted and measured" not in render_report([real])
    assert find_twin(make_virtual_run(tmp_path, **SHORT, cluster="here")) is None
    assert find_twin(make_virtual_run(tmp_path, **SHORT, cluster="here", kind="twin", lr=0.3)).id == other.id
