"""What does not fit together is one sentence, said before anything starts."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from looped import looped
from strangers import forget, install

import tenfold
from tenfold.crossval import check_folds
from tenfold.crossval.fold import FoldMode
from tenfold.engines import choose, resolve
from tenfold.engines.prepare import Notify, validate, validate_combination
from tenfold.engines.processes import Serial
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.launchers import World
from tenfold.machine import devices
from tenfold.mixing import COMPRESSIONS, OUTER, STRATEGIES
from tenfold.registry import ENGINES
from tenfold.workers.task import Resolved

ALIKE = "requires identical replicas after each round"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"strategy": "ring", "outer": "bmuf"}, f'parallel.outer = "bmuf" {ALIKE}, which "ring" does not guarantee; use'),
    ({"strategy": "none", "outer": "diloco"}, f'parallel.outer = "diloco" {ALIKE}'),
    ({"strategy": "easgd", "outer": "slowmo"}, f'parallel.outer = "slowmo" {ALIKE}'),
    ({"strategy": "gossip", "compression": "int8"}, f'parallel.compression = "int8" {ALIKE}'),
    ({"strategy": "hopping-ring", "compression": "topk"}, f'parallel.compression = "topk" {ALIKE}'),
    ({"strategy": "butterfly", "average": "gradients"}, f'parallel.average = "gradients" {ALIKE}'),
    ({"strategy": "downpour", "average": "gradients"}, f'parallel.average = "gradients" {ALIKE}'),
    ({"average": "gradients", "outer": "bmuf"}, "parallel.outer"),
    ({"average": "gradients", "optimizer_state": "average"}, 'requires parallel.optimizer_state = "local"'),
    ({"average": "gradients", "optimizer": "lbfgs"}, 'set parallel.average = "weights"'),
    ({"optimizer": "lbfgs", "optimizer_state": "average"}, "lbfgs"),
    ({"optimizer": torch.optim.LBFGS, "optimizer_state": "average"}, '"torch.optim.lbfgs:LBFGS" has no state'),
    ({"strategy": "easgd", "optimizer_state": "reset"}, '"easgd" requires parallel.optimizer_state = "local"'),
    ({"strategy": "downpour", "compression": "bf16"}, '"downpour" requires parallel.compression = "none"'),
    ({"strategy": "ad-psgd", "optimizer": "lbfgs"}, "ad-psgd"),
    ({"strategy_options": {"sides": 1}}, "sides"),
    ({"strategy": "ring", "strategy_options": {"side": 1}}, "side"),
    ({"strategy": "easgd", "strategy_options": {"tau": 0}}, "easgd: tau is 0; it must be at least 1"),
    ({"strategy": "easgd", "strategy_options": {"tau": "ten"}}, "parallel.strategy_options = {'tau': 'ten'}: "),
    ({"outer": "bmuf", "outer_options": {"beta": 1}}, "beta"),
    ({"compression": "topk", "compression_options": {"size": 3}}, "size"),
]


@looped(("fields", "sentence"), REFUSED)
def test_bad_combinations_are_refused_in_one_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ExperimentError) as refused:
        validate_combination(Resolved.of(Experiment(**{"workers": 4, "oversubscribe": True} | fields)))
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@looped("strategy", sorted(STRATEGIES))
def test_every_strategy_by_itself_is_fine(strategy: str) -> None:
    experiment = Experiment(workers=4, strategy=strategy)
    validate_combination(Resolved.of(experiment))
    assert Resolved.of(experiment).strategy.name == strategy


@pytest.mark.parametrize("exact", ["allreduce", "parameter-server"])
def test_exact_strategies_go_with_everything(exact: str) -> None:
    for outer in OUTER:
        for compression in COMPRESSIONS:
            experiment = Experiment(workers=4, strategy=exact, outer=outer, compression=compression)
            validate_combination(Resolved.of(experiment))
            assert experiment.parallel.outer == outer


@pytest.mark.parametrize("sync_every", [1, 2, 100])
def test_gradients_are_mixed_at_every_step_whatever_sync_every_is(sync_every: int) -> None:
    experiment = Experiment(workers=4, average="gradients", sync_every=sync_every)
    validate_combination(Resolved.of(experiment))
    assert experiment.parallel.average == "gradients"


def test_what_is_exact_depends_on_the_number_of_workers() -> None:
    """Two in a butterfly, or three (a prime), average exactly in every round; six do not."""
    for workers in (2, 3):
        validate_combination(Resolved.of(Experiment(workers=workers, strategy="butterfly", outer="bmuf")))
    with pytest.raises(ExperimentError, match='"butterfly" does not guarantee'):
        validate_combination(Resolved.of(Experiment(workers=6, strategy="butterfly", outer="bmuf")))


@looped(
    ("fields", "name"),
    [
        ({}, "serial"),
        ({"workers": 2}, "processes"),
        ({"engine": "processes"}, "processes"),
        ({"engine": "serial"}, "serial"),
    ],
)
def test_the_engine_that_fits(fields: dict[str, Any], name: str) -> None:
    assert choose(Experiment(**fields)).name == name


def test_one_worker_has_no_room_for_two() -> None:
    with pytest.raises(ExperimentError, match=r"parallel\.workers"):
        validate(Experiment(workers=2, engine="serial"), None)


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps", "auto"])
def test_several_workers_step_together_on_a_gpu(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "resolve", lambda _: torch.device("cuda"))
    several = Experiment(workers=2, device=device)
    validate(several, None)
    assert choose(several).name == "one-device"
    sentence = (
        f'machine.engine = "processes" runs several workers on CPU only, but machine.device = "{device}"; use auto'
    )
    with pytest.raises(ExperimentError, match=re.escape(sentence)):
        validate(several.replace(engine="processes"), None)
    with pytest.raises(ExperimentError, match="replicas"):
        validate(several.replace(strategy="downpour"), None)
    validate(Experiment(workers=1, device=device), None)
    virtual = Experiment(workers=2, device=device, engine="virtual")
    validate(virtual, None)
    with pytest.raises(ExperimentError, match="activation_checkpointing"):
        validate(virtual.replace(activation_checkpointing=True), None)


def test_auto_is_the_cpu_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def resolve(device: str) -> torch.device:
        asked.append(device)
        return torch.device("cpu")

    monkeypatch.setattr(devices, "resolve", resolve)
    validate(Experiment(workers=2, device="auto"), None)
    assert set(asked) == {"auto"}


def test_an_outer_optimizer_takes_the_learning_rate_as_it_is_and_rarer_rounds() -> None:
    experiment = Experiment(workers=4, outer="bmuf")
    assert (Resolved.of(experiment).lr_scale, experiment.parallel.pace) == (1, 16)
    assert Experiment(workers=4, outer="bmuf", sync_every=2).parallel.pace == 2
    assert Experiment(workers=4).parallel.pace == 4


@looped(("strategy", "scale"), [("allreduce", 2), ("ring", 2), ("none", 1), ("easgd", 1), ("ad-psgd", 1)])
def test_the_learning_rate_grows_where_replicas_average_in_rounds(strategy: str, scale: float) -> None:
    assert Resolved.of(Experiment(workers=4, strategy=strategy)).lr_scale == scale


@pytest.mark.parametrize(("optimizer", "scale"), [("sgd", 2), ("adam", 2), ("muon", 8)])
def test_with_muon_the_learning_rate_grows_by_sqrt_at_any_size(optimizer: str, scale: float) -> None:
    assert Resolved.of(Experiment(workers=64, optimizer=optimizer)).lr_scale == scale
    assert Resolved.of(Experiment(workers=64, optimizer=optimizer, lr_scaling="none")).lr_scale == 1


def test_only_gpus_compile() -> None:
    with pytest.raises(ExperimentError, match="compile"):
        validate(Experiment(compile=True, device="cpu"), None)
    validate(Experiment(compile="auto", device="cpu"), None)


def test_fp16_is_for_gpus() -> None:
    with pytest.raises(ExperimentError, match="fp16"):
        validate(Experiment(precision="fp16", device="cpu"), None)
    with pytest.raises(ExperimentError, match="gradients"):
        validate_combination(Resolved.of(Experiment(precision="fp16", device="cuda", workers=2, average="gradients")))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"optimizer": "sgd", "optimizer_options": {"dampning": 0.1}},
            "damp",
        ),
        ({"optimizer": "adamw", "optimizer_options": {"wings": 2}}, "wings"),
        ({"optimizer": "muon", "optimizer_options": {"step": 3}}, "steps"),
        (
            {"optimizer": torch.optim.NAdam, "optimizer_options": {"beta": 3}},
            "beta",
        ),
        ({"optimizer": "sgd", "optimizer_options": {"dampening": "low"}}, "low"),
        ({"optimizer": "adamw", "optimizer_options": {"eps": "tiny"}}, '"adamw" cannot be created: '),
        (
            {"optimizer": "muon", "optimizer_options": {"steps": 2.5}},
            "steps must be a whole number from 1 to 10, not 2.5",
        ),
        ({"optimizer": "sgd", "nesterov": True, "momentum": 0.0}, "Nesterov momentum requires a momentum"),
        ({"optimizer": "lbfgs", "weight_decay": 0.1}, "lbfgs does not support it"),
    ],
)
def test_options_of_optimizers_are_tried(fields: dict[str, Any], sentence: str) -> None:
    state = torch.random.get_rng_state()
    with pytest.raises(ExperimentError) as refused:
        validate(Experiment(**fields), None)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    "fields",
    [
        {"optimizer": "sgd", "optimizer_options": {"dampening": 0.1, "maximize": True}},
        {"optimizer": "adam", "optimizer_options": {"capturable": True}},
        {"optimizer": "adamw", "optimizer_options": {"betas": [0.8, 0.9], "amsgrad": True}},
        {"optimizer": "muon", "optimizer_options": {"partner": "adamw", "output": "partner"}},
        {"optimizer": "lbfgs", "optimizer_options": {"max_iter": 2}},
        {"optimizer": torch.optim.NAdam, "optimizer_options": {"momentum_decay": 0.1}},
        {
            "optimizer": lambda parameters, **options: torch.optim.SGD(parameters, **options),
            "optimizer_options": {"lr": 1},
        },
    ],
)
def test_options_that_work_are_not_refused(fields: dict[str, Any]) -> None:
    validate(Experiment(**fields), None)


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Return a function that installs a package with an engine of this module's."""

    def install_engine(name: str) -> None:
        install(tmp_path, monkeypatch, "stable", {"tenfold.engines": {"pony": f"{__name__}:{name}"}})
        forget(ENGINES)

    yield install_engine
    monkeypatch.undo()
    forget(ENGINES)


class Pony(Serial):
    """Meant for two epochs."""

    name = "pony"

    @classmethod
    def create(cls, _resolved: Resolved, notify: Notify) -> "Pony":
        """Return the engine; it cannot be made in another way."""
        return cls(notify)

    def __init__(self, _notify: Notify) -> None:
        super().__init__()

    @classmethod
    def is_usual(cls, experiment: Experiment, _world: World | None) -> bool:
        """Return whether there are two epochs."""
        return experiment.training.epochs == 2


class Foal(Pony):
    """Says nothing about what it is meant for."""


def test_an_installed_engine_that_is_meant_for_an_experiment_comes_first(engines: Callable[[str], None]) -> None:
    engines("Pony")
    heard: list[str] = []
    assert isinstance(resolve(Experiment(epochs=2), heard.append).engine, Pony)
    assert "stable" in heard[0]
    assert choose(Experiment(epochs=3)).name == "serial"
    assert choose(Experiment(epochs=2, engine="serial")).name == "serial"
    assert FoldMode.of(Experiment(epochs=2, folds=2)).name == "fold-by-fold"


def test_an_installed_engine_that_only_inherits_replaces_none(engines: Callable[[str], None]) -> None:
    engines("Foal")
    assert choose(Experiment(epochs=2)).name == "serial"
    assert choose(Experiment(epochs=2, engine="pony")) is Foal


def test_an_installed_engine_that_is_broken_leaves_the_others(engines: Callable[[str], None]) -> None:
    engines("NotThere")
    with pytest.warns(UserWarning, match="stable"):
        assert choose(Experiment()).name == "serial"
    with pytest.raises(ExperimentError, match="stable"):
        validate(Experiment(engine="pony"))


def test_folds_are_trained_by_the_engine_that_was_given(tmp_path: Path) -> None:
    whole = tenfold.cross_validate(
        model="mlp",
        hidden=[4],
        data="digits",
        limit=60,
        folds=2,
        epochs=1,
        engine=Pony,
        threads=1,
        runs=tmp_path,
    )
    assert len(whole.folds) == 2
    assert not whole.failed
    with pytest.raises(ExperimentError, match="fold-by-fold"):
        check_folds(Experiment(folds=2, engine=Pony, fold_mode="folds-over-workers"))
