import pytest
from made_store import DIGITS, new_run, some_events

from tenfold.errors import StoreError
from tenfold.experiment import Experiment
from tenfold.runs import Run
from tenfold.runs.events import Metric


def opened(store, number, **kwargs):
    return Run(store, store.find(number), **kwargs)


def metric(name, value, part, epoch, step=0, seconds=0.0):
    return Metric(at=0, name=name, value=value, part=part, step=step, epoch=epoch, seconds=seconds)


def test_a_run_says_what_was_recorded(tmp_path):
    store, number = new_run(tmp_path, events=some_events())
    result = {"metrics": {"loss": 0.25, "accuracy": 0.9}, "seconds": 1.5, "times": {"compute": 1.0}}
    store.update(number, result=result, status="finished")
    run = opened(store, number)
    assert (run.id, run.title, run.kind, run.status, run.error) == (number, "mlp-digits", "train", "finished", "")
    assert (run.accuracy, run.loss, run.seconds) == (0.9, 0.25, 1.5)
    assert (run.metrics, run.times, run.metadata) == (result["metrics"], {"compute": 1.0}, {"cores": 2})
    assert run.experiment == DIGITS
    assert run.path == tmp_path / "1-mlp-digits"
    assert run.ended >= run.created
    assert repr(run) == "<Run 1 mlp-digits: finished, loss 0.25, accuracy 0.9, 1.5 s measured>"


def test_seconds_are_measured_unless_a_virtual_cluster_told_them(tmp_path):
    store, number = new_run(tmp_path)
    store.update(number, result={"seconds": 1.5}, status="finished")
    run = opened(store, number)
    assert (run.clock, run.predicted_seconds, run.interval) == ("measured", None, None)
    assert run.summary()["clock"] == "measured"
    store.update(number, result={"seconds": 1.5, "clock": "predicted", "interval": [1.0, 2.0]}, status="finished")
    run = opened(store, number)
    assert (run.clock, run.predicted_seconds, run.interval) == ("predicted", 1.5, (1.0, 2.0))
    assert run.summary()["clock"] == "predicted"
    assert repr(run).endswith("1.5 s predicted>")


def test_a_virtual_run_is_predicted_from_its_beginning(tmp_path):
    store, number = new_run(tmp_path)
    run = opened(store, number, experiment=Experiment(engine="virtual"))
    assert (run.clock, run.predicted_seconds, run.interval) == ("predicted", None, None)


def test_the_history_has_one_row_an_epoch(tmp_path):
    events = [
        metric("loss", 2.0, "train", 0, step=5),
        metric("lr", 0.1, "train", 0, step=5),
        metric("epoch_loss", 1.5, "train", 0, step=10, seconds=1.0),
        metric("loss", 1.25, "test", 0, step=10, seconds=1.0),
        metric("accuracy", 0.5, "test", 0, step=10, seconds=1.0),
        metric("epoch_loss", 1.0, "train", 1, step=20, seconds=2.0),
        metric("loss", 0.75, "test", 1, step=20, seconds=2.0),
        metric("accuracy", 0.625, "test", 1, step=20, seconds=2.0),
    ]
    run = opened(*new_run(tmp_path, events=events))
    assert run.history == [
        {"epoch": 1, "step": 10, "seconds": 1.0, "train_loss": 1.5, "test_loss": 1.25, "test_accuracy": 0.5},
        {"epoch": 2, "step": 20, "seconds": 2.0, "train_loss": 1.0, "test_loss": 0.75, "test_accuracy": 0.625},
    ]


def test_the_history_of_a_resumed_run_has_no_epoch_twice(tmp_path):
    events = [metric("epoch_loss", float(epoch), "train", epoch) for epoch in range(3)]
    store, number = new_run(tmp_path, events=events)
    store.update(number, result={}, status="interrupted")
    store.claim_and_restart(number, epoch=1)
    store.append(number, [metric("epoch_loss", 10.0 + epoch, "train", epoch) for epoch in (1, 2)])
    assert [row["train_loss"] for row in opened(store, number).history] == [0.0, 11.0, 12.0]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ("interrupted", "tenfold resume 1"),
        ("failed", "tenfold resume 1"),
        ("running", "running"),
        ("finished", "model.pt"),
    ],
)
def test_a_missing_model_is_explained(tmp_path, status, message):
    store, number = new_run(tmp_path)
    if status != "running":
        store.update(number, result={}, status=status)
    with pytest.raises(StoreError) as caught:
        _ = opened(store, number).weights
    assert message in str(caught.value)


def test_folds_have_the_model_of_the_whole_and_other_runs_their_own(tmp_path):
    original = Experiment(model=lambda: "built", data="digits", dropout=0.5)
    store, number = new_run(tmp_path, original)
    fold = store.create(
        original.replace(lr=0.5),
        kind="fold",
        metadata={"crossval": {"parent": number, "fold": 1, "repeat": 1, "node": 0}},
    )
    stranger = store.create(original, kind="train", metadata={})
    run = opened(store, number, experiment=original)
    assert run.other(number, weights={}).experiment.model == original.model
    assert run.other(fold).experiment.model == original.model
    assert run.other(fold).experiment.training.lr == 0.5
    assert repr(run.other(stranger).experiment.model.name) == "<lambda>"


def test_the_objects_of_the_experiment_are_there_only_when_given_again(tmp_path):
    original = Experiment(model=lambda: "built", data="digits")
    store, number = new_run(tmp_path, original)
    assert repr(opened(store, number).experiment.model.name) == "<lambda>"
    assert opened(store, number, experiment=original).experiment is original
