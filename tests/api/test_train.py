"""What a user of the Python interface is promised, each promise put to the test on small data."""

import os
import random
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

import tenfold
from tenfold.errors import DataError, ExperimentError, ModelError, StoreError, TrainingError
from tenfold.experiment.experiment import with_defaults

pytestmark = pytest.mark.usefixtures("_in_a_folder_of_its_own")
SMALL = {"model": "mlp", "data": "digits", "hidden": [16], "limit": 300, "epochs": 2}
OPTIMIZERS = ("sgd", "adam", "adamw", "rmsprop", "adagrad", "lbfgs")


def train(**fields: Any) -> tenfold.Run:
    """One thread does for small data, and leaves the other cores to other tests."""
    return tenfold.train(**{"threads": 1} | fields)


def weights(run: tenfold.Run) -> dict[str, Tensor]:
    return run.model.state_dict()


def same(first: tenfold.Run, second: tenfold.Run) -> bool:
    one, other = weights(first), weights(second)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def points(count: int = 120, inputs: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Samples whose class is the sign of their sum: easily learned."""
    x = torch.randn(count, inputs, generator=torch.Generator().manual_seed(seed))
    return x, (x.sum(1) > 0).long()


class WordModel(nn.Module):
    """Embeddings, an LSTM and a score for each of 300 words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(300, 32), nn.LSTM(32, 32, batch_first=True)
        self.output = nn.Linear(32, 300)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.lstm(self.words(x))[0])


def text() -> tuple[Tensor, Tensor]:
    """Sequences in which one of three words follows each word, and of these the first most often."""
    generator = torch.Generator().manual_seed(0)
    follow = torch.randint(300, (300, 3), generator=generator)
    words = [torch.randint(300, (500,), generator=generator)]
    for _ in range(20):
        choice = torch.multinomial(torch.tensor([0.6, 0.3, 0.1]), 500, replacement=True, generator=generator)
        words.append(follow[words[-1], choice])
    sequences = torch.stack(words, 1)
    return sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()


def test_the_defaults_suit_a_language_model_with_small_batches() -> None:
    small = {"model": WordModel, "data": text, "epochs": 3, "batch_size": 10, "test_fraction": 0.2}
    usual, by_adamw = train(**small), train(**small, optimizer="adamw")
    assert usual.metadata["lr"]["base"] == pytest.approx(0.015 * (10 * 20 / 64) ** 0.5)
    assert usual.history[-1]["test_loss"] < 0.7 * by_adamw.history[-1]["test_loss"]


class Points(Dataset[tuple[Tensor, int]]):
    def __init__(self, count: int = 120) -> None:
        self.x, self.y = points(count)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index], int(self.y[index])


class Noisy(Points):
    """Adds noise from torch's generator, as augmentations do."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(x.shape), y


class NumpyNoise(Points):
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x, y = super().__getitem__(index)
        return x + torch.from_numpy(np.random.normal(0, 0.1, x.shape)).float(), y


class Small(nn.Module):
    def __init__(self, shape: tuple[int, ...], outputs: int, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), width))
        self.last = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.layers(x)))


def small_network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def worst_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.reshape(targets.shape) - targets).abs().max()


class TestTheRun:
    def test_flat_names_reach_their_sections(self) -> None:
        run = train(**SMALL, lr=0.1, seed=3, batch_size=32)
        training = run.experiment.training
        assert (training.lr, training.seed, training.batch_size, training.epochs) == (0.1, 3, 32, 2)
        assert run.experiment.model.hidden == (16,)
        assert run.result["steps"] == 2 * 10  # 300 samples in batches of 32

    def test_an_experiment_is_taken_whole_and_fields_beside_it_change_it(self) -> None:
        experiment = tenfold.Experiment(**SMALL)
        assert tenfold.train(experiment).experiment == with_defaults(experiment)
        assert tenfold.train(experiment, epochs=1).experiment == with_defaults(experiment.replace(epochs=1))

    def test_it_learns(self) -> None:
        run = train(model="mlp", data="digits", epochs=5)
        assert run.accuracy is not None
        assert run.accuracy > 0.9
        losses = [row["train_loss"] for row in run.history]
        assert losses[-1] < losses[0] / 2

    def test_accuracy_is_what_the_model_scores_on_the_test_part(self) -> None:
        x, y = points()
        run = train(model="mlp", data={"train": (x, y), "test": (x[:50], y[:50])}, hidden=[8], epochs=3)
        with torch.no_grad():
            right = (run.model(x[:50]).argmax(1) == y[:50]).float().mean()
            loss = functional.cross_entropy(run.model(x[:50]), y[:50])
        assert run.accuracy == pytest.approx(float(right))
        assert run.loss == pytest.approx(float(loss), rel=1e-5)

    def test_the_model_is_ready_to_predict(self) -> None:
        run = train(**SMALL, dropout=0.5)
        assert isinstance(run.model, nn.Module)
        assert not run.model.training
        assert run.model is run.model

    def test_history_has_a_row_an_epoch_and_time_only_grows(self) -> None:
        run = train(**SMALL | {"epochs": 4})
        assert [row["epoch"] for row in run.history] == [1, 2, 3, 4]
        assert {"step", "seconds", "train_loss", "test_loss", "test_accuracy"} <= run.history[0].keys()
        seconds = [row["seconds"] for row in run.history]
        assert seconds == sorted(seconds)
        assert run.history[-1]["test_accuracy"] == pytest.approx(run.accuracy)

    def test_seconds_are_the_training_part_of_times(self) -> None:
        run = train(**SMALL)
        assert run.times.keys() >= {"start", "data", "compute", "evaluate", "save"}
        assert all(seconds >= 0 for seconds in run.times.values())
        training = sum(run.times.get(kind, 0.0) for kind in ("data", "compute", "wait", "communicate"))
        assert run.seconds == pytest.approx(training)
        assert sum(run.times.values()) <= run.result["total_seconds"] + 1e-6

    def test_the_folder_holds_what_is_needed_to_do_it_again(self) -> None:
        run = train(**SMALL)
        files = {path.name for path in run.path.iterdir()}
        assert files == {"experiment.toml", "model.pt", "predictions.npz"}
        assert tenfold.Experiment.load(run.path / "experiment.toml") == run.experiment
        again = tenfold.train(tenfold.Experiment.load(run.path / "experiment.toml"))
        assert same(run, again)

    def test_it_is_found_again(self) -> None:
        run = train(**SMALL, name="first")
        train(**SMALL)
        for reference in (run.id, str(run.id), "first"):
            found = tenfold.open_run(reference)
            assert (found.id, found.accuracy, found.history) == (run.id, run.accuracy, run.history)
            assert same(found, run)
        assert [list_run.id for list_run in tenfold.list_runs()] == [1, 2]
        assert tenfold.open_run().id == 2

    def test_runs_go_where_they_are_told_to(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert train(**SMALL, runs=tmp_path / "a").path.parent == tmp_path / "a"
        monkeypatch.setenv("TENFOLD_RUNS", str(tmp_path / "b"))
        assert train(**SMALL).path.parent == tmp_path / "b"
        assert not (tmp_path / "runs").exists()

    def test_listeners_hear_what_is_recorded(self) -> None:
        heard: list[object] = []
        run = train(**SMALL, listen=heard.append)
        assert heard == list(run.events())

    def test_a_listener_that_fails_fails_the_run(self) -> None:
        def listen(_event: object) -> None:
            raise RuntimeError("no more")

        with pytest.raises(RuntimeError, match="no more"):
            train(**SMALL, listen=listen)
        assert tenfold.open_run().status == "failed"


class TestDeterminism:
    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    def test_the_same_experiment_gives_the_same_weights(self, optimizer: str) -> None:
        fields = SMALL | {"optimizer": optimizer, "dropout": 0.2, "batchnorm": True}
        first = train(**fields)
        torch.randn(7)  # what happened before must not matter
        assert same(first, train(**fields))

    @pytest.mark.parametrize("model", ["mlp", "lenet5", "cnn"])
    def test_every_network_in_either_precision(self, model: str) -> None:
        fields = {"model": model, "data": "digits", "limit": 100, "epochs": 1}
        full, half = train(**fields), train(**fields, precision="bf16")
        assert same(full, train(**fields))
        assert same(half, train(**fields, precision="bf16"))
        assert not same(full, half)

    def test_on_all_cores_too(self) -> None:
        fields = {"model": "lenet5", "data": "digits", "limit": 300, "epochs": 1, "threads": None}
        assert same(train(**fields), train(**fields))

    def test_another_seed_gives_other_weights_on_the_same_parts(self) -> None:
        first, second = (train(**SMALL, seed=seed) for seed in (0, 1))
        assert not same(first, second)
        assert first.metadata["data"]["fingerprint"] == second.metadata["data"]["fingerprint"]

    def test_another_split_seed_gives_other_parts(self) -> None:
        first, second = (train(**SMALL, split_seed=seed) for seed in (0, 1))
        assert first.metadata["data"]["fingerprint"] != second.metadata["data"]["fingerprint"]

    @pytest.mark.parametrize("noisy", [Noisy, NumpyNoise])
    def test_noise_drawn_while_reading_is_a_function_of_the_seed(self, noisy: type[Points]) -> None:
        first, second = (train(model="mlp", data=noisy(), hidden=[8], epochs=2) for _ in range(2))
        assert same(first, second)

    @pytest.mark.parametrize("form", ["arrays", "dataset"])
    def test_how_the_same_samples_are_given_does_not_matter(self, form: str) -> None:
        x, y = points()
        data = (x.numpy(), y.numpy()) if form == "arrays" else Points()
        fields = {"model": "mlp", "hidden": [8], "epochs": 2}
        assert same(train(data=(x, y), **fields), train(data=data, **fields))


class TestTheSurroundings:
    def test_generators_and_threads_are_left_alone(self) -> None:
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)
        states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
        threads = torch.get_num_threads()
        run = train(**SMALL, dropout=0.3, threads=1)
        assert run.result["threads"] == 1
        assert run.model is not None
        assert torch.equal(torch.get_rng_state(), states[0])
        assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]
        assert torch.get_num_threads() == threads
        assert torch.is_grad_enabled()

    def test_also_when_training_fails(self) -> None:
        threads, state = torch.get_num_threads(), torch.get_rng_state()
        with pytest.raises(TrainingError):
            train(**SMALL, threads=1, lr=1e30)
        assert torch.get_num_threads() == threads
        assert torch.equal(torch.get_rng_state(), state)

    def test_the_environment_is_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            monkeypatch.delenv(name, raising=False)
        before = dict(os.environ)
        train(**SMALL, threads=1)
        assert dict(os.environ) == before

    def test_given_tensors_are_not_written_to(self) -> None:
        x, y = points()
        before = x.clone(), y.clone()
        train(model="mlp", data=(x, y), epochs=1)
        assert torch.equal(x, before[0])
        assert torch.equal(y, before[1])


class TestModels:
    def test_by_import_path_in_the_current_folder(self, tmp_path: Path) -> None:
        (tmp_path / "my_networks.py").write_text(
            "from torch import nn\n"
            "def wide(shape, outputs, *, width=4):\n"
            "    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, outputs))\n"
        )
        run = train(**SMALL | {"model": "my_networks:wide", "hidden": None}, model_options={"width": 6})
        assert run.model[1].out_features == 6
        assert run.title == "wide-digits"
        assert same(tenfold.open_run(), run)

    @pytest.mark.parametrize(
        "make", [small_network, Small, lambda: small_network()], ids=["function", "class", "lambda"]
    )
    def test_by_callable(self, make: object) -> None:
        run = train(model=make, data="digits", limit=300, epochs=1)
        assert run.status == "finished"
        assert isinstance(run.model, nn.Sequential | Small)
        assert run.model is not None

    def test_the_first_weights_follow_the_seed_for_own_networks_too(self) -> None:
        first, second, third = (train(model=Small, data="digits", limit=100, epochs=1, seed=seed) for seed in (4, 4, 5))
        assert same(first, second)
        assert not same(first, third)

    def test_a_lambda_of_another_process_cannot_be_built_again_and_says_so(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        train(model=lambda: small_network(), data="digits", limit=100, epochs=1)
        assert tenfold.open_run().model is not None
        monkeypatch.setattr("tenfold.common.imports._written_here", set())
        run = tenfold.open_run()
        with pytest.raises(ModelError, match=r"network\.load_state_dict"):
            _ = run.model
        assert small_network().load_state_dict(run.weights)

    def test_it_can_be_built_again_by_who_trusts_the_folder(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tenfold.runs.store.note_written", lambda content: None)
        trained = train(model=lambda: small_network(), data="digits", limit=100, epochs=1)
        x = torch.rand(2, 1, 8, 8)
        assert torch.equal(tenfold.open_run(trust=True).model(x), trained.model(x))
        with pytest.raises(ModelError, match=r"tenfold\.open_run"):
            _ = tenfold.open_run(1).model
        cv = tenfold.cross_validate(model=lambda: small_network(), data="digits", limit=100, epochs=1, folds=2)
        assert tenfold.open_run(cv.runs[0].id, trust=True).model is not None

    def test_a_run_that_failed_has_no_model_whatever_it_was_given(self) -> None:
        with pytest.raises(ModelError):
            train(model=lambda: nn.Linear(3, 10), data="digits", epochs=1)
        with pytest.raises(StoreError, match="failed"):
            _ = tenfold.open_run().model

    def test_a_network_that_exists_already_is_copied(self) -> None:
        network = small_network()
        before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        runs = [tenfold.train(model=network, data="digits", limit=64, epochs=1) for _ in range(2)]
        assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
        assert all(torch.equal(tensor, runs[1].weights[name]) for name, tensor in runs[0].weights.items())

    def test_models_and_data_by_position_are_shown_the_right_call(self) -> None:
        network, x, y = small_network(), torch.zeros(8, 3), torch.zeros(8)
        loader = DataLoader(TensorDataset(x, y), batch_size=4)
        for given, call in (
            ((network, x, y), "tenfold.train(model=..., data=...)"),
            ((network, loader), "data=loader.dataset, batch_size=4); Tenfold makes the batches itself"),
            (("mlp", "digits"), "tenfold.train(model=..., data=...)"),
            ((tenfold.Experiment(), x), "train(experiment, lr=0.1)"),
        ):
            with pytest.raises(ExperimentError, match=re.escape(call)):
                tenfold.train(*given)
        with pytest.raises(DataError, match=r"data=loader\.dataset"):
            tenfold.train(model="mlp", data=loader)

    def test_one_that_does_not_fit_the_data_fails_with_a_sentence(self) -> None:
        with pytest.raises(ModelError, match="float32") as caught:
            train(model=lambda: nn.Linear(3, 10), data="digits", epochs=1)
        assert "\n" not in str(caught.value)
        run = tenfold.open_run()
        assert (run.status, run.error) == ("failed", str(caught.value))

    def test_one_that_fails_later_keeps_its_own_error(self) -> None:
        class Tired(Small):
            calls = 0

            def forward(self, x: Tensor) -> Tensor:
                type(self).calls += 1
                if self.calls > 3:
                    raise LookupError("too tired")
                return super().forward(x)

        with pytest.raises(LookupError, match="too tired"):
            train(model=Tired, data="digits", epochs=1)
        assert tenfold.open_run().status == "failed"
        assert "too tired" in tenfold.open_run().error

    def test_batch_normalization_survives_a_last_batch_of_one(self) -> None:
        data = {"train": points(65), "test": points(20, seed=1)}
        run = train(model="mlp", data=data, batchnorm=True, batch_size=64, epochs=1)
        assert run.status == "finished"


class TestData:
    x, y = points()
    FORMS = {  # noqa: RUF012
        "tensors": (x, y),
        "arrays": (x.double().numpy(), y.to(torch.int32).numpy()),
        "train and test": ((x, y), points(40, seed=1)),
        "train, validation and test": ((x, y), points(30, seed=2), points(40, seed=1)),
        "by name": {"train": (x, y), "test": points(40, seed=1)},
        "TensorDataset": TensorDataset(x, y),
        "map-style Dataset": Points(),
        "callable": points,
    }

    @pytest.mark.parametrize("form", FORMS)
    def test_every_form_is_learned_from(self, form: str) -> None:
        run = train(model="mlp", data=self.FORMS[form], hidden=[8], epochs=12, lr=0.1, batch_size=16)
        metadata = run.metadata["data"]
        assert (metadata["shape"], metadata["classes"]) == ([4], 2)
        tests = 40 if "test" in form or "name" in form else 24
        assert (metadata["train"], metadata["test"]) == (120 if tests == 40 else 96, tests)
        assert metadata["validation"] == (30 if "validation" in form else 0)
        assert run.accuracy is not None
        assert run.accuracy > 0.8

    def test_options_reach_a_callable(self) -> None:
        run = train(model="mlp", data=points, data_options={"count": 50}, epochs=1, test_fraction=0.5)
        assert (run.metadata["data"]["train"], run.metadata["data"]["test"]) == (25, 25)

    def test_loader_processes_change_nothing(self) -> None:
        fields = {"model": "mlp", "data": Points(), "hidden": [8], "epochs": 2}
        assert same(train(**fields), train(**fields, loader_workers=1))

    def test_the_test_part_is_never_learned_from(self) -> None:
        x, y = points()
        elsewhere = points(40, seed=1)
        spoilt = elsewhere[0] * 100, 1 - elsewhere[1]
        fields = {"model": "mlp", "hidden": [8], "epochs": 2, "batchnorm": True}
        assert same(train(data=((x, y), elsewhere), **fields), train(data=((x, y), spoilt), **fields))

    def test_nonsense_is_refused_before_a_run_is_recorded(self) -> None:
        with pytest.raises(DataError, match="cannot be used as data"):
            train(model="mlp", data=[1, 2, 3])
        with pytest.raises(StoreError, match="there are no runs"):
            tenfold.list_runs()


class TestMeasures:
    @staticmethod
    def line() -> tuple[Tensor, Tensor]:
        x, _ = points(200, inputs=3)
        return x, x @ torch.tensor([1.0, -2.0, 0.5])

    def test_regression_is_chosen_by_the_targets(self) -> None:
        run = train(model=lambda: nn.Linear(3, 1), data=self.line(), epochs=30, lr=0.1, metrics=["mae", "rmse"])
        assert run.accuracy is None
        assert run.metrics.keys() == {"loss", "mae", "rmse"}
        assert run.metrics["rmse"] == pytest.approx(run.metrics["loss"] ** 0.5, rel=1e-4)
        assert run.metrics["rmse"] < 0.05
        assert torch.allclose(run.model.weight.detach(), torch.tensor([[1.0, -2.0, 0.5]]), atol=0.05)

    def test_own_loss_and_metrics(self) -> None:
        calls = []

        def huber(outputs: Tensor, targets: Tensor) -> Tensor:
            calls.append(len(targets))
            return functional.huber_loss(outputs.reshape(targets.shape), targets)

        metrics = {"worst": worst_error, "bias": lambda outputs, targets: (outputs.flatten() - targets).mean()}
        run = train(model=lambda: nn.Linear(3, 1), data=self.line(), loss=huber, metrics=metrics, epochs=2)
        assert run.metrics.keys() == {"loss", "worst", "bias"}
        assert run.metrics["worst"] >= abs(run.metrics["bias"])
        assert calls
        assert {"test_worst", "test_bias"} <= run.history[0].keys()

    def test_a_loss_given_as_a_class_or_module(self) -> None:
        fields = {"model": "mlp", "data": points(), "epochs": 1}
        plain = train(**fields)
        assert same(plain, train(**fields, loss=nn.CrossEntropyLoss))
        assert same(plain, train(**fields, loss=nn.CrossEntropyLoss()))

    def test_a_network_with_a_sigmoid_predicts_what_its_accuracy_counts(self) -> None:
        x, y = points(200)
        network = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
        given = {"model": network, "data": ((x, y), (x, y)), "epochs": 2, "optimizer": "sgd"}
        run = train(**given, loss=nn.BCELoss(), metrics="accuracy")
        expected = (run.model(x)[:, 0] > 0.5) == y
        assert run.accuracy == pytest.approx(float(expected.float().mean()))
        assert torch.equal(run.predict(x) == y, expected)
        assert run.predictions.right.mean() == pytest.approx(run.accuracy)
        assert torch.allclose(tenfold.open_run(run.id, trust=True).predict_proba(x), run.model(x)[:, 0])
        with pytest.warns(UserWarning, match="sigmoid"):
            train(**given, loss=lambda o, t: functional.binary_cross_entropy(o, t.float()))

    def test_a_single_logit_of_an_own_loss_is_predicted_by_its_sign(self) -> None:
        x, y = points(200)
        own = {"loss": lambda o, t: functional.binary_cross_entropy_with_logits(o, t.float())}
        run = train(model=nn.Linear(4, 1), data=((x, y), (x, y)), epochs=2, **own)
        assert float((run.predict(x) == y).float().mean()) == pytest.approx(run.accuracy)

    def test_a_label_for_each_position(self) -> None:
        x = torch.randn(90, 1, 6)
        y = (x[:, 0] > 0).long() + (x[:, 0] > 1).long()
        y[:, -1] = -100
        run = train(
            model=lambda: nn.Conv1d(1, 3, 3, padding=1), data=(x, y), epochs=3, metrics=["accuracy", "f1_macro"]
        )
        tested = run.predictions
        known = tested.targets != -100
        assert run.accuracy == pytest.approx(tested.right[known].mean())
        assert (run.predict(x).numpy()[tested.samples] == tested.predictions).all()

    def test_two_lambdas_need_names(self) -> None:
        with pytest.raises(ExperimentError, match="name them"):
            train(**SMALL, metrics=[lambda o, t: o.mean(), lambda o, t: o.max()])

    def test_a_metric_called_loss_does_not_hide_the_loss(self) -> None:
        try:
            run = train(**SMALL, metrics={"loss": lambda o, t: torch.tensor(-1.0)})
        except ExperimentError:
            return
        assert run.loss is not None
        assert run.loss > 0

    def test_unknown_ones_are_named(self) -> None:
        with pytest.raises(ExperimentError, match="did you mean 'cross-entropy'"):
            train(**SMALL, loss="cross-entropi")
        with pytest.raises(ExperimentError, match="known: accuracy, mae, rmse"):
            train(**SMALL, metrics=["nonsense"])


class TestPatience:
    NOISE = torch.randn(60, 8, generator=torch.Generator().manual_seed(1)), torch.arange(60) % 2

    def test_it_stops_early_with_the_best_weights(self) -> None:
        fields = {"model": "mlp", "data": self.NOISE, "validation_fraction": 0.3, "lr": 0.2, "batch_size": 8}
        fields["schedule"] = "constant"  # others depend on how many epochs are to come
        run = train(**fields, epochs=40, patience=3)
        losses = [row["validation_loss"] for row in run.history]
        best = losses.index(min(losses)) + 1
        assert run.result["stopped_early"]
        assert run.result["best_epoch"] == best
        assert len(losses) == run.result["epochs"] == best + 3
        assert same(run, train(**fields, epochs=best))

    def test_without_it_the_last_epoch_counts(self) -> None:
        run = train(model="mlp", data=self.NOISE, validation_fraction=0.3, lr=0.2, epochs=8)
        assert run.result["epochs"] == 8
        assert not run.result["stopped_early"]
        assert run.result["part"] == "test"

    def test_validation_samples_are_kept_out_of_training(self) -> None:
        run = train(**SMALL, validation_fraction=0.25)
        whole = train(**SMALL)
        assert run.metadata["data"]["validation"] > 0
        assert {"validation_loss", "validation_accuracy"} <= run.history[0].keys()
        assert run.metadata["data"]["fingerprint"] != whole.metadata["data"]["fingerprint"]


class TestUnderALauncher:
    @pytest.mark.parametrize(
        ("name", "what"),
        [
            ("cross_validate", "a cross-validation"),
            ("compare", "a comparison"),
            ("twin", "a twin"),
            ("forecast", "a forecast"),
            ("simulate", 'machine.engine = "virtual"'),
        ],
    )
    def test_what_has_workers_of_its_own_is_refused(
        self, name: str, what: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for variable, value in {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}.items():
            monkeypatch.setenv(variable, value)
        sentence = f"{what} starts its own workers, but torchrun started 4 ranks"
        with pytest.raises(ExperimentError, match=sentence):
            getattr(tenfold, name)(**SMALL)
        assert not Path("runs").exists()


def test_trainings_in_threads_are_those_of_one_thread() -> None:
    fields = SMALL | {"epochs": 1}
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(lambda _: train(**fields).metrics, range(3)))
    assert together == [train(**fields).metrics] * 3


class Jittered(Dataset[tuple[Tensor, int]]):
    """Adds noise of all generators to its samples."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        noise = random.random() + np.random.rand() + torch.rand(64)
        return noise + index % 3, index % 3


@pytest.mark.parametrize(
    "fields",
    [
        {"dropout": 0.3},
        {"dropout": 0.3, "engine": "one-device"},
        {"model": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Dropout(0.5)), "hidden": None},
        {"data": Jittered()},
    ],
    ids=["dropout", "stacked", "own model", "augmented"],
)
def test_random_layers_draw_in_threads_what_they_draw_alone(fields: dict[str, Any]) -> None:
    fields = SMALL | {"epochs": 1, "batch_size": 5} | fields
    torch.manual_seed(7)
    before = torch.get_rng_state()

    def weights(seed: int) -> dict[str, Tensor]:
        return train(**fields, seed=seed).weights

    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(weights, [1, 2, 1]))
    assert torch.equal(torch.get_rng_state(), before)
    alone = {seed: weights(seed) for seed in (1, 2)}
    for seed, found in zip([1, 2, 1], together, strict=True):
        assert all(torch.equal(found[name], tensor) for name, tensor in alone[seed].items())


class TestFailure:
    def test_a_diverging_loss_is_a_sentence_and_a_failed_run(self) -> None:
        with pytest.raises(TrainingError, match="learning") as caught:
            train(**SMALL, lr=1e30)
        assert "\n" not in str(caught.value)
        run = tenfold.open_run()
        assert (run.status, run.error) == ("failed", str(caught.value))
        assert run.result["diverged"]
        with pytest.raises(StoreError, match="failed"):
            _ = run.model

    @pytest.mark.parametrize("engine", ["auto", "one-device"])
    def test_a_loss_that_is_no_number_from_the_start_is_not_blamed_on_the_learning_rate(self, engine: str) -> None:
        with pytest.raises(TrainingError, match="nan already in the first step") as caught:
            train(**SMALL, engine=engine, loss=lambda outputs, _: outputs.sum() * float("nan"))
        assert "learning rate" not in str(caught.value)

    def test_unknown_fields_are_refused(self) -> None:
        with pytest.raises(ExperimentError, match=r"did you mean training\.lr\?"):
            train(**SMALL, learning_rate=0.1)

    def test_folds_are_refused_with_the_verb_that_trains_them(self) -> None:
        with pytest.raises(ExperimentError, match="`tenfold crossval` or"):
            train(**SMALL, folds=5)
