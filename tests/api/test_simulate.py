"""A simulation is compared with one worker, and says when the accuracy is at risk."""

import pytest

import tenfold
from tenfold.api import simulate as module
from tenfold.experiment.experiment import with_defaults
from tenfold.reports.pages.sections import run_headline
from tenfold.runs import Store


def virtual_run(folder, workers, accuracy, steps, engine="virtual", kind="simulate", **more):
    """Record a run on a virtual cluster, or another engine, without training it."""
    experiment = tenfold.Experiment(model="mlp", data="digits", workers=workers, engine=engine, epochs=3)
    store = Store(folder)
    metadata = {"data": {"name": "digits", "shape": [1, 8, 8], "classes": 10, "outputs": 10, "train": 1438}}
    number = store.create(with_defaults(experiment), kind=kind, metadata=metadata)
    result = {"metrics": {"accuracy": accuracy}, "seconds": 10.0 / workers, "clock": "predicted", "epochs": 3}
    result |= {"steps": steps, "workers": workers, "part": "test"} | more
    store.update(number, result=result, status="finished")
    return experiment, tenfold.open_run(number, runs=folder)


def warning(run, batch=64):
    return module._warning(run, batch)


def test_few_steps_are_warned_of(tmp_path):
    _, run = virtual_run(tmp_path, 32, 0.6, steps=9)
    assert warning(run).startswith("each replica took 9 steps, one worker alone would take 69: the accuracy may have")
    _, run = virtual_run(tmp_path / "many", 2, 0.9, steps=500)
    assert warning(run) == ""


def test_a_recorded_run_of_one_worker_tells_what_was_lost(tmp_path):
    virtual_run(tmp_path, 1, 0.95, steps=69)
    _, worse = virtual_run(tmp_path, 8, 0.6, steps=12)
    assert warning(worse).startswith("accuracy 60.00%, but 95.00% with one worker (run 1): each replica took 12 steps")
    _, same = virtual_run(tmp_path, 4, 0.95, steps=18)
    assert warning(same) == ""


def test_a_fold_of_a_cross_validation_is_no_run_of_one_worker(tmp_path):
    virtual_run(tmp_path, 1, 0.95, steps=69, kind="fold")
    _, run = virtual_run(tmp_path, 8, 0.6, steps=500)
    assert warning(run) == ""


def test_a_real_run_of_one_worker_does_the_same_arithmetic(tmp_path):
    virtual_run(tmp_path, 1, 0.6, steps=69, engine="serial")
    _, same = virtual_run(tmp_path, 32, 0.6, steps=9)
    assert warning(same) == ""


@pytest.mark.parametrize("stopped", [{"stopped_early": True}, {"seconds_to_target": 2.5}], ids=str)
def test_a_run_that_stopped_early_is_not_compared_with_all_epochs_of_one_worker(tmp_path, stopped):
    experiment, run = virtual_run(tmp_path, 4, 0.95, steps=20, **stopped)
    assert module.simulation_baseline(experiment, run, module.LoadedData()) is None
    assert not any("speedup" in name for name, _, _ in run_headline(run, None))


def test_the_page_has_the_accuracy_of_one_worker_beside_the_speedup(tmp_path):
    virtual_run(tmp_path, 1, 0.95, steps=69)
    _, run = virtual_run(tmp_path, 8, 0.6, steps=12, baseline_seconds=10.0, speedup=8.0)
    note = next(note for name, _, note in run_headline(run, None) if "speedup" in name)
    assert "95.00%" in note
