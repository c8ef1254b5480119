"""Simulations as a user starts them: in Python and on the command line."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import tenfold
from tenfold.api import simulate as twin_module
from tenfold.cli import app
from tenfold.engines import prepare
from tenfold.errors import ExperimentError
from tenfold.prediction.calibration import profile_metadata
from tenfold.prediction.measurements import Averaging, Costs
from tenfold.prediction.profile import Profile

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("_in_a_folder_of_its_own")]
SMALL: dict[str, Any] = {"model": "mlp", "data": "digits", "hidden": [16], "limit": 300, "epochs": 2}
NODES = {"count": 1024, "step_seconds": 0.01, "link": "1gbe"}


@pytest.fixture
def _calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds are known already; steps are measured when they are needed."""
    place = tmp_path / "profile.toml"
    monkeypatch.setenv("TENFOLD_PROFILE", str(place))
    shared: Any = {"transport": "shared-memory", "kind": "group", "latency": 1e-4, "bandwidth": 1e9}
    rounds = Averaging(workers=2, fan=2, seconds={1000: 1e-4, 1_000_000: 1e-3}, **shared)
    costs = Costs(start={1: 1.0, 2: 1.5}, save={1000: 0.01})
    Profile(made="now", machine=profile_metadata(), averaging=(rounds,), costs=costs).save(place)


def tenfold_(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_a_cluster_may_be_a_value_a_table_or_a_file(tmp_path: Path) -> None:
    cluster = tenfold.Cluster(groups=[NODES])
    cluster.save(tmp_path / "edge.toml")
    runs = [tenfold.simulate(**SMALL, workers=4, cluster=item) for item in (cluster, {"groups": [NODES]}, "edge.toml")]
    assert len({run.seconds for run in runs}) == 1
    assert {run.clock for run in runs} == {"predicted"}
    assert runs[0].predicted_seconds == runs[0].seconds
    assert tenfold.open_run(runs[0].id).experiment == runs[0].experiment
    trained = tenfold.train(**SMALL, workers=4, engine="virtual", cluster=cluster)
    assert (trained.experiment, trained.seconds) == (runs[0].experiment, runs[0].seconds)


def test_folds_are_trained_here_and_timed_on_the_cluster() -> None:
    asked: Any = {**SMALL, "folds": 3, "fold_mode": "data-and-folds", "workers": 4}
    run = tenfold.simulate(**asked, cluster={"groups": [NODES]})
    predicted = tenfold.forecast(**asked, cluster={"groups": [NODES]}).rows[0].seconds.mean
    assert (run.clock, run.seconds) == ("predicted", pytest.approx(predicted))
    assert run.result["speedup"] > 1
    assert run.experiment.machine.engine == "virtual"
    trained = tenfold.cross_validate(**asked, oversubscribe=True).run
    assert (trained.clock, trained.metrics) == ("measured", run.metrics)


def test_the_time_alone_is_predicted_over_a_grid() -> None:
    outlook = tenfold.forecast(**SMALL, workers=[1, 2, 16], strategy=["allreduce", "ring"], cluster={"groups": [NODES]})
    assert [(row.workers, row.seconds.mean is not None) for row in outlook.rows] == [(1, True)] + [(2, True)] * 2 + [
        (16, True)
    ] * 2
    times = [row.seconds.mean for row in outlook.rows]
    assert times[0] > times[1] > times[3]


def test_data_are_loaded_once_for_all_that_learn_from_them(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []
    load = prepare.load

    def counted(experiment: tenfold.Experiment, *arguments: Any) -> Any:
        loaded.append(experiment.data.limit)
        return load(experiment, *arguments)

    monkeypatch.setattr(prepare, "load", counted)
    fields: dict[str, Any] = SMALL | {"limit": [100, 200]}
    outlook = tenfold.forecast(**fields, workers=[1, 2, 4], cluster={"groups": [NODES]})
    assert len(outlook.rows) == 6
    assert loaded == [100, 200]


def test_the_real_one_of_twins_is_real(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[tenfold.Experiment] = []

    def train(experiment: tenfold.Experiment, **_: Any) -> Any:
        trained.append(experiment)
        return SimpleNamespace(weights={})

    monkeypatch.setattr(twin_module, "predict_task", lambda _: None)
    monkeypatch.setattr(twin_module, "train_and_record", train)
    monkeypatch.setattr(twin_module, "finished_run", lambda recorded: recorded)
    monkeypatch.setattr(twin_module, "Twin", lambda *_: None)
    tenfold.twin(**SMALL, engine="virtual", link="lte")
    machines = [(message.machine.engine, message.machine.cluster, message.machine.link) for message in trained]
    assert machines == [("auto", None, None), ("virtual", "here", None)]


@pytest.mark.usefixtures("_calibrated")
def test_a_twin_has_the_same_weights() -> None:
    told: list[str] = []

    def watch(name: str) -> Any:
        told.append(name)
        return lambda _: None

    twin = tenfold.twin(**SMALL, workers=2, threads=1, watch=watch)
    assert told == ["real", "virtual"]
    assert twin.difference == 0.0
    assert twin.error is not None
    assert twin.virtual.result["calibrated"]
    assert twin.virtual.accuracy == twin.real.accuracy


@pytest.mark.usefixtures("_calibrated")
def test_nodes_step_like_this_machine_and_are_joined_by_a_link() -> None:
    slow, fast = (tenfold.simulate(**SMALL, workers=8, sync_every=1, link=link) for link in ("lte", "infiniband"))
    assert slow.seconds > 2 * fast.seconds
    assert slow.result["calibrated"]


class TestVerbs:
    def test_simulate_one(self, tmp_path: Path) -> None:
        tenfold.Cluster(groups=[NODES]).save("edge.toml")
        tenfold.Experiment(**SMALL).save("small.toml")
        ran = tenfold_("simulate", "small.toml", "--workers", "4", "--cluster", "edge.toml", "--json")
        assert ran.exit_code == 0, ran.output
        told = json.loads(ran.stdout)
        assert (told["clock"], told["workers"], told["experiment"]["engine"]) == ("predicted", 4, "virtual")

    def test_simulate_several_and_the_time_alone(self) -> None:
        tenfold.Cluster(groups=[NODES]).save("edge.toml")
        tenfold.Experiment(**SMALL | {"epochs": 1}).save("small.toml")
        shared = ["simulate", "small.toml", "--cluster", "edge.toml", "--format", "csv", "--quiet"]
        learned = tenfold_(*shared, "--workers", "1,2", "-o", "page.html")
        assert learned.exit_code == 0, learned.output
        assert len(learned.stdout.splitlines()) == 3
        assert Path("page.html").stat().st_size > 10_000
        alone = tenfold_(*shared, "--workers", "1,2,4,...,64", "--only-time")
        assert alone.exit_code == 0, alone.output
        assert len(alone.stdout.splitlines()) == 8
        assert "accuracy" not in alone.stdout.splitlines()[0]
        listed = tenfold_(*shared, "--workers", "2", "--set", "strategy=ring,butterfly", "--only-time")
        assert [line.split(",")[0] for line in listed.stdout.splitlines()].count("2") == 2

    @pytest.mark.usefixtures("_calibrated")
    def test_threads_may_have_several_values(self) -> None:
        tenfold.Experiment(**{name: value for name, value in SMALL.items() if name != "threads"}).save("small.toml")
        ran = tenfold_("simulate", "small.toml", "--threads", "1,2", "--only-time", "--format", "csv", "--quiet")
        assert ran.exit_code == 0, ran.output
        assert len(ran.stdout.splitlines()) == 3

    @pytest.mark.usefixtures("_calibrated")
    def test_a_link_is_described_in_place(self) -> None:
        tenfold.Experiment(**SMALL | {"epochs": 1, "sync_every": 1}).save("small.toml")
        link = "{latency = 0.5, bandwidth = 12e6}"
        shared = ["simulate", "small.toml", "--workers", "2", "--only-time", "--format", "json", "--quiet"]
        slow, fast = (json.loads(tenfold_(*shared, "--link", item).stdout)["rows"][0] for item in (link, "10gbe"))
        assert slow["seconds"] > fast["seconds"] + 0.5

    @pytest.mark.usefixtures("_calibrated")
    def test_twin(self) -> None:
        tenfold.Experiment(**SMALL).save("small.toml")
        ran = tenfold_("twin", "small.toml", "--workers", "2", "--threads", "1", "--quiet", "-o", "twin.html")
        assert ran.exit_code == 0, ran.output
        assert "0.0, bit for bit the same" in ran.stdout
        assert "predicted" in ran.stdout
        assert Path("twin.html").stat().st_size > 10_000

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["--link", "10gb"], "10gbe"),
            (["--cluster", "nowhere.toml"], "there is no file nowhere.toml"),
            (["--cluster", "edge.toml", "--link", "wifi"], "machine.link"),
            (["--workers", "1,...,8"], "sequence"),
        ],
    )
    def test_bad_input_is_one_sentence(self, arguments: list[str], sentence: str) -> None:
        tenfold.Cluster(groups=[NODES]).save("edge.toml")
        ran = tenfold_("simulate", "--data", "digits", "--model", "mlp", *arguments)
        assert ran.exit_code == 2
        assert sentence in ran.output
        assert "Traceback" not in ran.output


def test_a_cluster_that_is_too_small_is_a_sentence() -> None:
    with pytest.raises(ExperimentError, match=r"room for 2 workers .* not for 4"):
        tenfold.simulate(**SMALL, workers=4, cluster={"groups": [NODES | {"count": 2}]})
    assert not Path("runs").exists()
