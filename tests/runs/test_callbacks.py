import warnings
from dataclasses import replace

import pytest

from tenfold.errors import ExperimentError, StopTraining
from tenfold.runs.callbacks import Callback, Callbacks, as_list
from tenfold.runs.events import Ended, EpochEnded, FoldChanged, Metric, Note

LOSS = Metric(at=1.0, name="loss", value=0.5, part="train", step=1, epoch=0, seconds=1.0)
ACCURACY = Metric(at=1.0, name="accuracy", value=0.9, part="test", step=1, epoch=0, seconds=1.0)
EPOCH = EpochEnded(at=2.0, epoch=0, metrics={"train_loss": 0.5})


class Hears(Callback):
    def __init__(self):
        self.heard = []

    def on_metric(self, event):
        self.heard.append(("metric", event))

    def on_evaluation(self, event):
        self.heard.append(("evaluation", event))

    def on_epoch_end(self, event):
        self.heard.append(("epoch", event))


class Stops:
    def __init__(self, *when, reason=""):
        self.when, self.reason = when, reason

    def on_metric(self, event):
        if event in self.when:
            raise StopTraining(self.reason)


def test_each_method_gets_its_events_and_the_listener_gets_all():
    one, told = Hears(), []
    listen = Callbacks(told.append, [one])
    for event in (LOSS, ACCURACY, EPOCH, Note(at=3.0, text="x")):
        listen(event)
    assert one.heard == [("metric", LOSS), ("metric", ACCURACY), ("evaluation", ACCURACY), ("epoch", EPOCH)]
    assert told == [LOSS, ACCURACY, EPOCH, Note(at=3.0, text="x")]


def test_a_stop_is_asked_for_when_training_can_stop():
    listen = Callbacks(lambda _: None, [Stops(LOSS, reason="enough"), Hears()])
    listen(LOSS)
    with pytest.raises(StopTraining, match="enough"):
        listen(ACCURACY)
    with pytest.raises(StopTraining, match="enough"):
        listen(EPOCH)


def test_a_stop_without_a_reason_names_the_callback():
    listen = Callbacks(lambda _: None, as_list(Stops(ACCURACY)))
    with pytest.raises(StopTraining, match="Stops"):
        listen(ACCURACY)


def test_a_fold_is_stopped_alone_or_with_all_others():
    second, third = (replace(EPOCH, worker=place, fold=place + 1) for place in (1, 2))
    stops = Stops(replace(LOSS, worker=1, fold=2), reason="enough")
    listen = Callbacks(lambda _: None, [stops])
    listen(stops.when[0])
    listen(third)
    with pytest.raises(StopTraining, match="enough"):
        listen(second)

    class StopsAll:
        def on_epoch_end(self, event):
            raise StopTraining(all_folds=event.fold == 2)

    listen = Callbacks(lambda _: None, [StopsAll()])
    for event in (second, third, FoldChanged(at=3.0, status="finished", fold=1, repeat=1, node=0)):
        with pytest.raises(StopTraining, match="StopsAll") as stop:
            listen(event)
        assert stop.value.all_folds


def test_slow_callbacks_are_named():
    listen = Callbacks(lambda _: None, [Hears()])
    listen(EPOCH)
    listen.seconds = {"listen": 9.0, "Hears.on_epoch_end": 2.0, "Hears.on_metric": 1.0}
    with pytest.warns(UserWarning, match=r"Hears\.on_epoch_end"):
        listen(Ended(at=10.0, status="finished"))
    listen.seconds = {"listen": 9.0, "Hears.on_metric": 0.1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        listen(Ended(at=10.0, status="finished"))


@pytest.mark.parametrize(
    ("on", "reason"),
    [
        ([Hears], "on_epoch_end"),
        (["print"], "not str; methods: on_recorded, on_run_start"),
        ([type("Typo", (), {"on_epoch_ended": print})()], r"Typo\.on_epoch_ended"),
    ],
)
def test_what_is_no_callback_is_refused(on, reason):
    with pytest.raises(ExperimentError, match=reason):
        Callbacks(print, as_list(on))
