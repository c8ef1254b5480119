import csv
import io
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import made_prediction

from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.reports import curves as knee
from tenfold.reports import setting_plots as forecast_plots
from tenfold.reports.forecast import Forecast

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
    def test_columns_are_told_even_where_all_are_the_same(self):
        names, rows = sweep([1, 2]).cells()
        assert names == [
            *("workers", "strategy", "sync every", "training time, s", "clock", "speedup", "efficiency %", "sent"),
            "compute/wait/communicate %",
        ]
        assert rows[1] == ["2", "allreduce", "4", "55.0 [52.3-58.3]", "predicted", "1.82", "91", "977 KiB", "91/9/0"]

    def test_speedup_is_against_one_worker_whatever_the_strategy(self, forecast):
        both = [row for row in forecast.rows if row.workers == 64]
        assert [row.speedup for row in both] == pytest.approx([100 / (row.seconds.mean or 1) for row in both])
        assert [row.efficiency for row in both] == pytest.approx([(row.speedup or 0) / 64 for row in both])

    def test_without_one_worker_there_is_no_speedup(self):
        alone = sweep([2, 4])
        assert [row.speedup for row in alone.rows] == [None, None]
        assert "no speedup, as there is no prediction for one worker: add 1 to the workers" in alone.lines()

    def test_it_says_where_strategies_differ_in_how_often_they_average_too(self):
        def notes(*paces):
            named = zip(("ring", "gossip"), paces, strict=True)
            rows = [(virtual(2, strategy=name, sync_every=pace), made_prediction(2)) for name, pace in named]
            return [line for line in Forecast(rows).lines() if "sync_every" in line]

        assert notes(8, 8) == []
        assert "ring every 1, gossip every 4" in notes(1, 4)[0]

    def test_it_is_predicted_in_every_form(self, forecast):
        assert all("predicted" in row for row in forecast.cells()[1])
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
        assert [row[4] for row in forecast.cells()[1]] == ["predicted, uncalibrated"] * 2
        assert any(note.startswith("uncalibrated: ") for note in forecast.lines())
        assert not any("uncalibrated" in note for note in sweep([1, 2]).lines())

    def test_times_far_apart_have_their_own_decimals(self):
        times = [row[3] for row in sweep([1, 64, 512], talk=0.00001).cells()[1]]
        assert times == ["100 [95-106]", "1.72 [1.63-1.82]", "0.220 [0.209-0.234]"]

    def test_links_make_settings(self):
        rows = [(virtual(n, link=link), made_prediction(n)) for link in ("wifi", "10gbe") for n in (1, 2)]
        forecast = Forecast(rows)
        assert [row.settings["link"] for row in forecast.rows] == ["wifi"] * 2 + ["10gbe"] * 2
        assert all(row.speedup for row in forecast.rows)
        assert len(forecast.explanation()) == 1


class TestBend:
    def test_it_is_where_communication_takes_over(self, forecast):
        sentences = forecast.explanation()
        assert sentences[0] == (
            "With allreduce, sync every 4, the speedup levels off at 128 workers: from 128 workers on, communication "
            "(56%) and waiting (9%) take longer than computing; beyond 128, more workers do not help (2.27 s "
            "predicted with 128, 11.4 s with 1,024)."
        )
        assert sentences[1].startswith("With butterfly, sync every 4, the speedup levels off at 512 workers: beyond ")

    def test_without_a_bend_that_is_said(self):
        assert sweep([1, 2, 4], talk=0.0).explanation() == [
            "With allreduce, sync every 4, the speedup keeps growing up to 4 workers, where computing still takes "
            "91% of the time."
        ]

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

    def test_one_prediction_bends_nowhere(self):
        assert sweep([1]).explanation() == []
        assert sweep([4]).explanation() == []

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
    low, high = forecast_plots.speedup_bounds(row)
    assert (low, high) == pytest.approx((row.speedup / 1.06, row.speedup / 0.95))


class TestPage:
    def test_it_explains_the_curve(self, forecast, tmp_path):
        page = forecast.report(tmp_path / "forecast.html").read_text(encoding="utf-8")
        for expected in (
            "levels off at",
            "speedup T1/Tn (predicted, link ",
            "ideal: number of workers",
            "Every time on this page is predicted",
            "A &lt;b&gt;bold&lt;/b&gt; reason.",
            "1,024",
        ):
            assert expected in page
        assert "<b>bold" not in page
        ids = re.findall(r'\bid="([^"]*)"', page)
        assert len(ids) == len(set(ids))

    def test_one_setting_is_a_page_without_curves(self, tmp_path):
        page = sweep([4]).report(tmp_path / "page.html").read_text(encoding="utf-8")
        assert "Speedup</h2>" not in page
        assert "shortest training, predicted" in page

    def test_no_setting_is_explained(self, tmp_path):
        with pytest.raises(ExperimentError, match="no prediction to report"):
            Forecast([]).report(tmp_path / "page.html")
        assert Forecast([]).to_json()
