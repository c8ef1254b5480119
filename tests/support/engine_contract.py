"""What every engine promises, whatever hosts its replicas: a subclass names the engine and gets these tests."""

import itertools
from typing import Any

import pytest
import torch
from engine_models import LAWFUL, same, train

import tenfold
from tenfold.data import Tensors
from tenfold.engines.prepare import prepare
from tenfold.errors import ModelError
from tenfold.runs.events import EpochEnded, Event, Lifecycle, Metric, Span
from tenfold.training import choose_loss, choose_metrics, evaluate
from tenfold.workers.task import Resolved

RESULT = {
    *("part", "metrics", "seconds", "times", "epochs", "steps", "samples", "samples_per_second", "bytes_moved"),
    *("workers", "threads", "best_epoch", "stopped_early", "total_seconds", "problem"),
}
KINDS = {"data", "compute", "wait", "communicate", "evaluate", "save", "start"}


class EngineContract:
    fields: dict[str, Any]
    """What an experiment needs to run on the engine."""
    spent_on: frozenset[str] = frozenset({"start", "data", "compute", "evaluate", "save"})
    """What every worker tells of."""

    @property
    def workers(self) -> int:
        return int(self.fields.get("workers", 1))

    @classmethod
    def train(cls, **fields: Any) -> tenfold.Run:
        return train(**LAWFUL | cls.fields | fields)

    @pytest.fixture(scope="class")
    @classmethod
    def events(cls) -> list[Event]:
        return []

    @pytest.fixture(scope="class")
    @classmethod
    def whole(cls, events: list[Event], tmp_path_factory: pytest.TempPathFactory) -> tenfold.Run:
        return cls.train(runs=tmp_path_factory.mktemp("whole"), listen=events.append)

    def test_the_run_begins_goes_through_its_epochs_and_ends(self, whole: tenfold.Run, events: list[Event]) -> None:
        stages = [event for event in events if isinstance(event, Lifecycle) and event.stage != "note"]
        assert [stage.stage for stage in stages] == ["recorded", "started", "epoch", "epoch", "epoch", "finished"]
        assert stages[0].run == whole.id
        assert [stage.epoch for stage in stages[2:5]] == [0, 1, 2]
        assert stages[1].workers == self.workers
        assert all(item.at <= other.at for item, other in itertools.pairwise(stages))
        assert events[-1] is stages[-1]

    def test_every_epoch_is_measured_before_it_is_over(self, whole: tenfold.Run, events: list[Event]) -> None:
        told: list[str] = []
        for event in events:
            if isinstance(event, Metric) and (event.part == "test" or event.name == "epoch_loss"):
                told.append(event.name)
            elif isinstance(event, EpochEnded):
                assert told == ["epoch_loss", "loss", "accuracy"]
                told.clear()
        assert not told

    def test_the_training_curve_moves_forward(self, whole: tenfold.Run, events: list[Event]) -> None:
        metrics = [event for event in events if isinstance(event, Metric)]
        curve = [metric for metric in metrics if (metric.name, metric.part) == ("loss", "train")]
        assert len(curve) >= whole.result["epochs"]
        assert all(item.step < other.step and item.seconds < other.seconds for item, other in itertools.pairwise(curve))
        assert curve[-1].step == whole.result["steps"]

    def test_every_worker_tells_where_its_time_goes(self, whole: tenfold.Run, events: list[Event]) -> None:
        spans = [event for event in events if isinstance(event, Span)]
        assert {span.worker for span in spans} == set(range(self.workers))
        for worker in range(self.workers):
            kinds = {span.kind for span in spans if span.worker == worker}
            assert self.spent_on <= kinds <= KINDS
        assert all(span.seconds >= 0 and span.count >= 1 for span in spans)

    def test_everything_told_is_recorded(self, whole: tenfold.Run, events: list[Event]) -> None:
        assert list(whole.events()) == events

    def test_the_result_is_complete(self, whole: tenfold.Run) -> None:
        assert set(whole.result) >= RESULT
        assert whole.status == "finished"
        assert whole.result["workers"] == self.workers
        assert whole.result["epochs"] == 3
        assert whole.result["samples"] == 3 * whole.metadata["data"]["train"]
        assert whole.result["problem"] == ""
        assert set(whole.times) <= KINDS
        assert whole.accuracy is not None
        assert whole.accuracy > 0.3  # chance is 0.1

    def test_the_history_has_a_row_an_epoch(self, whole: tenfold.Run) -> None:
        assert [row["epoch"] for row in whole.history] == [1, 2, 3]
        losses = [row["train_loss"] for row in whole.history]
        assert losses[-1] < losses[0]
        assert 0 <= whole.history[0]["train_accuracy"] < whole.history[-1]["train_accuracy"] <= 1
        assert all(item["seconds"] < other["seconds"] for item, other in itertools.pairwise(whole.history))

    def test_the_saved_weights_are_those_that_were_measured(self, whole: tenfold.Run) -> None:
        task = prepare(Resolved.of(whole.experiment))
        training, classes = whole.experiment.training, task.splits.classes
        assert isinstance(task.splits.test, Tensors)
        measured = evaluate(
            whole.model, task.splits.test, choose_loss(training, classes), choose_metrics(training, classes)
        )
        assert measured == pytest.approx(whole.metrics, rel=1e-5)

    def test_the_same_again_gives_the_same_bits(self, whole: tenfold.Run) -> None:
        again = self.train()
        assert same(again.model.state_dict(), whole.model.state_dict())
        assert again.metrics == whole.metrics
        assert [row["train_loss"] for row in again.history] == [row["train_loss"] for row in whole.history]

    def test_another_seed_gives_other_weights_and_the_caller_is_left_as_it_was(self, whole: tenfold.Run) -> None:
        before, threads = torch.random.get_rng_state(), torch.get_num_threads()
        other = self.train(seed=1, epochs=1)
        assert torch.equal(torch.random.get_rng_state(), before)
        assert torch.get_num_threads() == threads
        assert not same(other.model.state_dict(), whole.model.state_dict())

    def test_an_interrupted_run_resumes_to_the_same_bits(self, whole: tenfold.Run) -> None:
        def interrupt(event: Event) -> None:
            if isinstance(event, Metric) and event.step > 2 * whole.result["steps"] // 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.train(log_every=1, listen=interrupt)
        interrupted = tenfold.open_run()
        assert interrupted.status == "interrupted"
        resumed = tenfold.resume()
        assert resumed.id == interrupted.id
        assert resumed.status == "finished"
        assert "resumed" in [stage.stage for stage in resumed.lifecycle()]
        assert same(resumed.model.state_dict(), whole.model.state_dict())
        assert resumed.metrics == whole.metrics
        assert [row["train_loss"] for row in resumed.history] == [row["train_loss"] for row in whole.history]
        assert resumed.result["bytes_moved"] == whole.result["bytes_moved"]

    def test_a_model_that_does_not_fit_the_data_is_a_sentence(self) -> None:
        with pytest.raises(ModelError, match="failed"):
            self.train(model=lambda: torch.nn.Linear(3, 2), hidden=None, batchnorm=None, dropout=None)
        assert tenfold.open_run().status == "failed"
