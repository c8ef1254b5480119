"""The settings that a plan chooses from."""

import pytest

from tenfold.cluster import Cluster
from tenfold.experiment import Experiment
from tenfold.machine import cores
from tenfold.prediction.planning.pricing import candidates_here, candidates_on, drop_dominated


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "budget", lambda: 4)


def test_workers_and_threads_fill_the_cores() -> None:
    found = {(one.workers, one.threads) for one in candidates_here(Experiment())}
    assert found == {(1, 4), (1, 1), (2, 2), (4, 1)}


def test_the_experiments_own_setting_is_among_them() -> None:
    own = Experiment(strategy="ring", sync_every=7, batch_size=48)
    assert any(
        one.experiment.parallel.strategy == "ring" and one.experiment.parallel.pace == 7
        and one.experiment.training.batch_size == 48
        for one in candidates_here(own)
    )  # fmt: skip


def test_at_most_so_many_workers_and_a_gpu_where_there_is_one() -> None:
    found = candidates_here(Experiment(), most_workers=2, gpu="cuda")
    assert {one.workers for one in found if one.device == "cpu"} == {1, 2}
    assert {one.workers for one in found if one.device == "cuda"} == {1}


def test_a_cluster_has_as_many_workers_as_it_has_room_for() -> None:
    found = candidates_on(Cluster.of(12), Experiment(), most_workers=64)
    assert {one.workers for one in found} == {1, 2, 4, 8, 12}
    assert all(one.experiment.machine.engine == "virtual" for one in found)


def test_averaged_gradients_have_the_learning_curve_of_one_worker_with_the_global_batch() -> None:
    found = [one for one in candidates_here(Experiment()) if one.batch == 128]
    exact = [one for one in found if one.looseness == 0]
    assert {(one.workers, one.threads) for one in exact} == {(1, 4), (1, 1), (2, 2), (4, 1)}
    assert len({one.curve_key for one in exact}) == 1
    assert len({one.curve_key for one in found}) == 1 + len(found) - len(exact)


def test_learning_curves_differ_where_learning_rates_do() -> None:
    found = [one for one in candidates_here(Experiment(lr=0.01)) if one.batch == 128 and one.looseness == 0]
    assert {one.curve_key for one in found if one.workers == 1}.isdisjoint(
        one.curve_key for one in found if one.workers == 2
    )


def test_probes_on_a_gpu_say_nothing_of_cpu_times() -> None:
    found = candidates_here(Experiment(), most_workers=1, gpu="cuda")
    on_cpu, on_gpu = ({one.curve_key for one in found if one.device == device} for device in ("cpu", "cuda"))
    assert not on_cpu & on_gpu


def test_looser_averaging_has_to_be_faster() -> None:
    two = [one for one in candidates_here(Experiment()) if one.workers == 2 and one.batch == 128]
    assert {one.looseness for one in two} == {0, 4, 16, 64}
    kept = drop_dominated([(one, {0: 1.0, 4: 0.99, 16: 0.9, 64: 0.89}[one.looseness]) for one in two])
    assert {one.looseness for one in kept} == {0, 16}
