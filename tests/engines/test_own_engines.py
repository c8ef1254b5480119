"""Engines that are not built in: when they are chosen, and how they are made."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from strangers import forget, install

import tenfold
from tenfold.catalog import ENGINES
from tenfold.crossval import check_folds
from tenfold.crossval.fold import FoldMode
from tenfold.engines import choose, resolve
from tenfold.engines.choose import Notify, validate
from tenfold.engines.serial import Serial
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.launch.detect import World
from tenfold.workers.task import Resolved


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
