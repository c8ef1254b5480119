"""What settings take that were not trained yet."""

from typing import Any

import pytest
import torch

from tenfold.cluster import Cluster
from tenfold.cluster.cluster import HERE
from tenfold.data import Splits, Tensors
from tenfold.experiment import Experiment
from tenfold.machine import cores
from tenfold.prediction.planning.candidates import (
    Candidate,
    CostModel,
    _Rates,
    candidates_here,
    candidates_on,
    drop_dominated,
)
from tenfold.prediction.planning.learning import Probe
from tenfold.prediction.profile import Profile

RATES = _Rates(first=3.0, epoch=2.0, error=(0.9, 1.1), start=0.0, evaluation=5.0, save=1.0)


def test_an_untried_setting_evaluates_and_saves_like_others_with_as_many_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CostModel, "_complete", lambda *_, **__: Profile(made="", machine={}))
    monkeypatch.setattr(CostModel, "_by_clock", lambda *_: RATES)
    part = Tensors(torch.ones(8, 2), torch.zeros(8, dtype=torch.int64))
    candidate = Candidate(Experiment(model="mlp", data="digits", batch_size=4, threads=1, device="cpu"))
    data = Splits(name="made", train=part, validation=part, shape=(2,), classes=2, outputs=2)
    costs = CostModel([candidate], data, HERE, print, deadline=0)
    probe = Probe(8, 2, "accuracy", (0.5,), 1.0, {}, start=0.1, evaluation=0.2, save=0.05)
    untried, with_others = costs(candidate, 2), costs(candidate, 2, similar=[probe])
    elsewhere = costs(candidate, 2, similar=[Probe(8, 2, "accuracy", (0.5,), 1.0, {}, threads=7)])
    assert untried is not None
    assert with_others is not None
    assert elsewhere is not None
    assert untried.other == elsewhere.other == 12
    assert with_others.other == pytest.approx(0.1 + 2 * 0.2 + 2 * 0.05)
    assert with_others.training == untried.training == 5


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "budget", lambda: 4)


def test_workers_and_threads_fill_the_cores() -> None:
    found = {(item.workers, item.threads) for item in candidates_here(Experiment())}
    assert found == {(1, 4), (1, 1), (2, 2), (4, 1)}


def test_the_experiments_own_setting_is_among_them() -> None:
    own = Experiment(strategy="ring", sync_every=7, batch_size=48)
    assert any(
        item.experiment.parallel.strategy == "ring" and item.experiment.parallel.pace == 7
        and item.experiment.training.batch_size == 48
        for item in candidates_here(own)
    )  # fmt: skip


def test_at_most_so_many_workers_and_a_gpu_where_there_is_one() -> None:
    found = candidates_here(Experiment(), most_workers=2, gpu="cuda")
    assert {item.workers for item in found if item.device == "cpu"} == {1, 2}
    assert {item.workers for item in found if item.device == "cuda"} == {1}


@pytest.mark.parametrize(("given", "on_gpu"), [(False, "auto"), ("auto", "auto"), (True, True)])
def test_runs_on_a_gpu_decide_whether_they_compile_their_steps(given: Any, on_gpu: Any) -> None:
    found = candidates_here(Experiment(compile=given), most_workers=2, gpu="cuda")
    assert {item.experiment.training.compile for item in found if item.device == "cuda"} == {on_gpu}
    assert {item.experiment.training.compile for item in found if item.device == "cpu"} == {False}


def test_a_cluster_has_as_many_workers_as_it_has_room_for() -> None:
    found = candidates_on(Cluster.of(12), Experiment(), most_workers=64)
    assert {item.workers for item in found} == {1, 2, 4, 8, 12}
    assert all(item.experiment.machine.engine == "virtual" for item in found)


def test_averaged_gradients_have_the_learning_curve_of_one_worker_with_the_global_batch() -> None:
    found = [item for item in candidates_here(Experiment()) if item.batch == 128]
    exact = [item for item in found if item.looseness == 0]
    assert {(item.workers, item.threads) for item in exact} == {(1, 4), (1, 1), (2, 2), (4, 1)}
    assert len({item.curve_key for item in exact}) == 1
    assert len({item.curve_key for item in found}) == 1 + len(found) - len(exact)


def test_learning_curves_differ_where_learning_rates_do() -> None:
    found = [item for item in candidates_here(Experiment(lr=0.01)) if item.batch == 128 and item.looseness == 0]
    assert {item.curve_key for item in found if item.workers == 1}.isdisjoint(
        item.curve_key for item in found if item.workers == 2
    )


def test_probes_on_a_gpu_say_nothing_of_cpu_times() -> None:
    found = candidates_here(Experiment(), most_workers=1, gpu="cuda")
    on_cpu, on_gpu = ({item.curve_key for item in found if item.device == device} for device in ("cpu", "cuda"))
    assert not on_cpu & on_gpu


def test_looser_averaging_has_to_be_faster() -> None:
    two = [item for item in candidates_here(Experiment()) if item.workers == 2 and item.batch == 128]
    assert {item.looseness for item in two} == {0, 4, 16, 64}
    kept = drop_dominated([(item, {0: 1.0, 4: 0.99, 16: 0.9, 64: 0.89}[item.looseness]) for item in two])
    assert {item.looseness for item in kept} == {0, 16}


def test_other_precisions_have_learning_curves_of_their_own() -> None:
    found = candidates_here(Experiment(), most_workers=1, gpu="cuda", precisions=["bf16"])
    assert {(item.device, item.precision) for item in found} == {("cpu", "fp32"), ("cpu", "bf16"), ("cuda", "fp32")}
    curves = {
        precision: {item.curve_key for item in found if item.precision == precision} for precision in ("fp32", "bf16")
    }
    assert curves["fp32"].isdisjoint(curves["bf16"])
    timed = [(item, 1.0 if item.precision == "fp32" else 0.5) for item in found]
    assert {item.precision for item in drop_dominated(timed)} == {"fp32", "bf16"}
