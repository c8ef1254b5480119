from made_runs import make_run, make_virtual_run, read_run

from tenfold.experiment import Experiment
from tenfold.reports.charts import PlotStyles
from tenfold.reports.comparison_rows import make_rows
from tenfold.reports.pages.page import mean_figure, page_figures, run_figure
from tenfold.runs import Recorder, Store
from tenfold.runs.events import Metric


def test_repeats_are_drawn_as_their_mean_as_far_as_all_have_come(tmp_path):
    store = Store(tmp_path)
    for seed, values in enumerate([(4.0, 2.0), (2.0,)]):
        record = Recorder(store, store.create(Experiment(seed=seed), kind="train", metadata={}))
        for step, value in enumerate(values):
            record(Metric(at=0, name="loss", value=value, part="test", step=step, epoch=0, seconds=step + seed))
        record.close(result={}, status="finished")
    rows = make_rows([read_run(store, 1), read_run(store, 2)])
    (curve,) = mean_figure(rows[0], PlotStyles(rows).style(rows[0]))["curves"]
    assert (curve["step"], curve["seconds"], curve["value"]) == ([0], [0.5], [3.0])


def test_a_loss_that_is_no_number_is_left_out(tmp_path):
    store = Store(tmp_path)
    record = Recorder(store, number := store.create(Experiment(), kind="train", metadata={}))
    for step, value in enumerate([1.0, float("nan"), float("inf"), 0.5]):
        record(Metric(at=0, name="loss", value=value, part="train", step=step, epoch=0, seconds=step))
    record.close(result={}, status="failed")
    (curve,) = run_figure(read_run(store, number))["curves"]
    assert curve["value"] == [1.0, 0.5]


def test_the_clock_is_part_of_what_is_drawn(tmp_path):
    both = [make_run(tmp_path, empty=True), make_virtual_run(tmp_path, steps_per_epoch=30, epochs=1)]
    assert page_figures([], both[:1])["clock"] == "measured"
    assert page_figures([], both)["clock"] == "measured and predicted"
    assert run_figure(both[1])["clock"] == "predicted"
