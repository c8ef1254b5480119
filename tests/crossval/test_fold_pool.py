"""All cores are shared among the models in every turn."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenfold.crossval import modes
from tenfold.crossval.modes import share_cores, spread_threads
from tenfold.experiment import Experiment
from tenfold.machine import cores
from tenfold.machine import cores as affinity


def experiment(**fields: Any) -> Experiment:
    return Experiment(model="mlp", data="digits", folds=4, **fields)


@settings(deadline=None)
@given(models=st.integers(1, 40), at_once=st.integers(1, 12), usable=st.integers(1, 12))
def test_all_cores_are_shared_in_every_turn(models: int, at_once: int, usable: int) -> None:
    at_once = min(models, at_once, usable)
    taken = spread_threads(models, at_once, usable)
    assert len(taken) == models
    turns = [taken[start : start + at_once] for start in range(0, models, at_once)]
    assert all(sum(turn) == usable for turn in turns)
    assert all(max(turn) - min(turn) <= 1 for turn in turns)


def test_the_last_folds_get_more_threads() -> None:
    assert spread_threads(10, 4, 4) == (1, 1, 1, 1, 1, 1, 1, 1, 2, 2)
    assert spread_threads(3, 2, 2) == (1, 1, 2)
    assert spread_threads(3, 3, 8) == (3, 3, 2)


@pytest.mark.parametrize(
    ("fields", "at_once", "threads"),
    [
        ({}, 4, (1,) * 8 + (2, 2)),
        ({"threads": 2}, 2, (2,) * 10),
        ({"workers": 2, "fold_mode": "folds-over-workers"}, 2, (2,) * 10),
        ({"workers": 3, "fold_mode": "data-and-folds"}, 3, (1,) * 10),
    ],
)
def test_how_many_at_once(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], at_once: int, threads: tuple[int, ...]
) -> None:
    monkeypatch.setattr(cores, "budget", lambda: 4)
    shared = share_cores(experiment(**fields), 10)
    assert (shared.at_once, shared.threads, shared.cpus, shared.count) == (at_once, threads, (), 4)


def test_pinned_slots_have_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "plan", lambda *_: affinity.CoreMap("compact", ((6,), (7,))))
    assert share_cores(experiment(pin="compact", threads=1), 3).cpus == (6, 7)
