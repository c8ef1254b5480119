"""`--on`: commands whose runs are jobs of a real Ray or a real Slurm."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import tenfold_
from forked import forked_python
from slurm_cluster import slurm_cluster, why_not

import tenfold
from tenfold.executors import slurm
from tenfold.runs.events import EpochEnded

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def experiment(tmp_path: Path) -> str:
    file = tmp_path / "small.toml"
    file.write_text(
        'model = { name = "mlp", hidden = [4] }\ndata = { name = "digits", limit = 100 }\n'
        "training = { epochs = 1 }\nmachine = { threads = 1, oversubscribe = true }\n"
    )
    return str(file)


@pytest.fixture(scope="module")
def _ray() -> Iterator[None]:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False, logging_level="error")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def _slurm() -> Iterator[None]:
    if reason := why_not():
        pytest.skip(reason)
    with slurm_cluster() as configuration, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(configuration))
        patch.setattr(slurm, "POLL_SECONDS", 0.2)
        patch.setattr(slurm, "python_command", forked_python)
        yield


def count(command: str, experiment: str, *more: str) -> int:
    """Run a command and return how many runs, folds or trials it has shown."""
    said = tenfold_(*command.split(), experiment, *more, "--json")
    assert said.exit_code == 0, said.output
    shown = json.loads(said.stdout)
    return len(shown if isinstance(shown, list) else shown.get("folds") or shown.get("trials") or shown["runs"])


@pytest.mark.usefixtures("_ray")
def test_runs_go_to_ray(experiment: str) -> None:
    assert count("crossval --folds 2 --on ray", experiment) == 2
    assert count("sweep --lr 1e-3:1e-1:log --batch-size 16,64 --trials 2 --on ray", experiment) == 2
    assert json.loads(tenfold_("train", experiment, "--workers", "2", "--on", "ray", "--json").stdout)["workers"] == 2


def test_a_run_is_not_resumed_on_an_executor_of_jobs_alone(experiment: str, tmp_path: Path) -> None:
    def interrupt(event: Any) -> None:
        if isinstance(event, EpochEnded):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tenfold.train(tenfold.Experiment.load(experiment), epochs=2, runs=tmp_path / "runs", listen=interrupt)
    refused = tenfold_("resume", "--on", "processes", "--runs", str(tmp_path / "runs"))
    assert refused.exit_code == 2
    assert "ray" in refused.stderr
    assert tenfold_("resume", "--runs", str(tmp_path / "runs")).exit_code == 0


@pytest.mark.usefixtures("_slurm")
def test_runs_go_to_slurm(experiment: str) -> None:
    options = "--workers 1,2 --strategy allreduce,ring --on slurm --partition cpu --time 0:30:00"
    said = tenfold_("compare", experiment, *options.split(), "--json")
    assert said.exit_code == 0, said.output
    assert len(json.loads(tenfold_("runs", "--json").stdout)) >= 3
    wrong = tenfold_("compare", experiment, "--lr", "0.1", "--on", "slurm", "--partition", "nowhere")
    assert wrong.exit_code == 2
    assert "partition" in wrong.stderr


def test_an_empty_name_is_no_executor(experiment: str) -> None:
    assert "unknown executor" in tenfold_("compare", experiment, "--on", "").output
