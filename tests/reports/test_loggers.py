"""Loggers, with stand-ins for the packages they write to."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

import tenfold
from tenfold.reports.loggers import make_loggers

FIELDS: dict[str, Any] = {"model": "mlp", "data": "digits", "limit": 120, "epochs": 2, "log_every": 1}


class FakeWriter:
    made: ClassVar[list["FakeWriter"]] = []

    def __init__(self, folder: str, purge_step: int | None = None) -> None:
        self.folder, self.purge_step = folder, purge_step
        self.scalars: list[tuple[str, float, int]] = []
        self.texts: dict[str, str] = {}
        self.closed = False
        self.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, value, step))

    def add_text(self, name: str, text: str) -> None:
        self.texts[name] = text

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class FakeClient:
    made: ClassVar[list["FakeClient"]] = []

    def __init__(self) -> None:
        self.metrics: list[Any] = []
        self.params: dict[str, str] = {}
        self.status = ""
        self.made.append(self)

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str) -> str:
        return f"id of {name}"

    def create_run(self, home: str, run_name: str, tags: dict[str, str]) -> Any:
        self.home, self.run_name, self.tags = home, run_name, tags
        return SimpleNamespace(info=SimpleNamespace(run_id="abc"))

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        self.metrics += metrics
        self.params |= {param.key: param.value for param in params}

    def set_terminated(self, run_id: str, status: str) -> None:
        self.status = status


@pytest.fixture
def tensorboard(monkeypatch: pytest.MonkeyPatch) -> list[FakeWriter]:
    FakeWriter.made = []
    module: Any = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = FakeWriter
    monkeypatch.setitem(sys.modules, "tensorboard", ModuleType("tensorboard"))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    return FakeWriter.made


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> list[FakeClient]:
    FakeClient.made = []
    package: Any = ModuleType("mlflow")
    entities: Any = ModuleType("mlflow.entities")
    package.MlflowClient = FakeClient
    entities.Metric = lambda key, value, timestamp, step: SimpleNamespace(key=key, value=value, step=step)
    entities.Param = lambda key, value: SimpleNamespace(key=key, value=value)
    monkeypatch.setitem(sys.modules, "mlflow", package)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return FakeClient.made


def test_both_get_the_numbers_of_the_run(
    tmp_path: Path, tensorboard: list[FakeWriter], mlflow: list[FakeClient]
) -> None:
    run = tenfold.train(**FIELDS, runs=tmp_path, log=["tensorboard", "mlflow"])
    told = [
        (f"{measurement.part}/{measurement.name}", measurement.value, measurement.step)
        for measurement in run.measurements()
    ]
    (writer,), (client,) = tensorboard, mlflow
    assert writer.scalars == told
    assert (writer.folder, writer.purge_step, writer.closed) == (str(run.path / "tensorboard"), None, True)
    assert 'name = "mlp"' in writer.texts["experiment"]
    assert [(metric.key, metric.value, metric.step) for metric in client.metrics] == told
    assert (client.params["model"], client.params["limit"], client.status) == ("mlp", "120", "FINISHED")
    assert client.tags["tenfold.run"] == str(run.id)


@pytest.mark.timeout(120)
def test_folds_are_told_apart(tmp_path: Path, tensorboard: list[FakeWriter], mlflow: list[FakeClient]) -> None:
    cv = tenfold.cross_validate(**FIELDS | {"epochs": 1}, folds=2, runs=tmp_path, log=["tensorboard", "mlflow"])
    names = {Path(writer.folder).name for writer in tensorboard if writer.scalars}
    assert names == {"fold-1", "fold-2"}
    last = {metric.key: metric.value for metric in mlflow[0].metrics}
    assert [last[f"fold {fold}/validation/accuracy"] for fold in (1, 2)] == list(cv.scores())


def test_a_store_that_fails_does_not_end_the_run(tmp_path: Path, mlflow: list[FakeClient]) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("no server at localhost:5000\nTraceback ...")

    FakeClient.log_batch, before = refuse, FakeClient.log_batch  # type: ignore[method-assign]
    try:
        with pytest.warns(UserWarning, match="localhost"):
            run = tenfold.train(**FIELDS, runs=tmp_path, log="mlflow")
    finally:
        FakeClient.log_batch = before  # type: ignore[method-assign]
    assert run.status == "finished"


def test_unknown_and_missing_ones_are_named_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(tenfold.TenfoldError, match="tensorboard"):
        tenfold.train(**FIELDS, runs=tmp_path, log="tensorbord")
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(tenfold.TenfoldError, match="installed"):
        make_loggers("mlflow", tmp_path)
    assert not list(tmp_path.iterdir())
