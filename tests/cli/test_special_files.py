"""Pipes, devices and links in the place of files: a sentence, or as if there were none; nothing waits."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import assert_one_sentence, tenfold_
from looped import looped
from made_store import train_interrupted_and_finished

import tenfold
from tenfold.board.feed import console_since
from tenfold.board.server import Actions
from tenfold.errors import ExperimentError, StoreError
from tenfold.runs import Store

SMALL = {"model": "mlp", "hidden": [4], "data": "digits", "limit": 40, "epochs": 2, "threads": 1}
TRAIN = ("--model", "mlp", "--data", "digits", "--set", "limit=40", "--epochs", "1")
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store with a run that was interrupted and one that finished."""
    return train_interrupted_and_finished(tmp_path_factory.mktemp("made") / "runs", **SMALL)


@pytest.fixture
def folder(made, tmp_path, _in_a_folder_of_its_own):
    shutil.copytree(made, tmp_path / "runs")
    np.save(tmp_path / "x.npy", np.zeros((2, 64), dtype=np.float32))
    return tmp_path


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@looped("name", ["model.pt", "console.txt", "predictions.npz", "lock", "experiment.toml", "resume.log"])
def test_a_pipe_in_the_folder_of_a_run(folder, made, name):
    shutil.rmtree(folder / "runs")
    shutil.copytree(made, folder / "runs")
    finished, interrupted = sorted((folder / "runs").glob("*-mlp-digits"), reverse=True)
    pipe(finished / name)
    pipe(interrupted / name)
    reads = {"model.pt": ("doctor",), "console.txt": ("report", "2", "-o", "page.html")}
    for command in (("runs",), ("show", "2"), ("predict", "2", "x.npy"), reads.get(name, ("export", "2"))):
        said = tenfold_(*command)
        assert said.exit_code in (0, 1) or (said.exit_code == 2 and len(said.stderr.splitlines()) == 1), said.output
    if name == "model.pt":
        assert_one_sentence(tenfold_("predict", "2", "x.npy"), "not a regular file")
    resumed = tenfold_("resume", "1", "--quiet")
    assert (resumed.exit_code == 2) == (name == "lock"), resumed.output
    assert console_since(interrupted, None)[0] is None or name != "console.txt"


@looped("name", ["tenfold.db", "tenfold.db-wal", "tenfold.db-shm", "tenfold.db-journal"])
def test_a_pipe_in_the_place_of_a_file_of_the_database(folder, made, name):
    shutil.rmtree(folder / "runs")
    shutil.copytree(made, folder / "runs")
    pipe(folder / "runs" / name)
    for command in (("runs",), ("train", "--model", "mlp", "--data", "digits", "--set", "limit=40", "--epochs", "1")):
        assert_one_sentence(tenfold_(*command), "not a regular file")


@looped("name", ["manifest.json", "epoch-1-worker-0.pt"])
def test_a_pipe_in_the_place_of_a_checkpoint(folder, made, name):
    shutil.rmtree(folder / "runs")
    shutil.copytree(made, folder / "runs")
    (checkpoints,) = (folder / "runs").glob("*/checkpoint")
    found = [path for path in checkpoints.iterdir() if path.name == name or path.suffix == ".pt" == Path(name).suffix]
    for path in found:
        pipe(path)
    assert found
    assert tenfold_("resume", "1", "--quiet").exit_code in (0, 2)


@looped("name", ["table.csv", "table.tsv", "table.parquet", "x.npy", "x.npz", "experiment.toml", "hosts", "image.png"])
def test_a_pipe_in_the_place_of_what_a_user_names(folder, name):
    pipe(folder / name)
    Path("classes/a").mkdir(parents=True, exist_ok=True)
    Path("classes/b").mkdir(exist_ok=True)
    if name == "image.png":
        Path("image.png").rename("classes/a/image.png")
    commands = {
        "experiment.toml": [("train", name), ("recipe", "run", name)],
        "hosts": [("launch", "experiment.toml", "--hosts", name)],
        "image.png": [("train", "--data", "classes")],
        "x.npy": [("train", "--data", name), ("predict", "2", name)],
    }
    if name == "hosts":
        Path("experiment.toml").unlink(missing_ok=True)
        tenfold.Experiment(**SMALL).save("experiment.toml")
    for command in commands.get(name, [("train", "--data", name)]):
        assert_one_sentence(tenfold_(*command), "not a regular file")


def test_a_device_in_the_place_of_a_description_of_a_cluster():
    with pytest.raises(ExperimentError, match="not a regular file"):
        tenfold.Cluster.load("/dev/zero")


def test_what_is_written_into_the_folder_of_a_run_does_not_follow_links(folder, monkeypatch):
    """Somebody else's store may link its files to those of the user."""
    (interrupted,) = (folder / "runs").glob("1-*")
    for name in ("console.txt", "lock", "resume.log", "record.json", "model.pt", ".console.txt.part"):
        (interrupted / name).unlink(missing_ok=True)
        (interrupted / name).symlink_to(folder / f"private-{name}")
    privates = [folder / name for name in ("private-console.txt", "private-lock", "private-resume.log")]
    for path in privates:
        path.write_text("mine")
    assert tenfold_("resume", "1", "--quiet").exit_code == 2  # its lock is a link
    monkeypatch.setattr("tenfold.board.server.tenfold_command", lambda *_: ["sh", "-c", "echo error: no; exit 2"])
    with pytest.raises(StoreError, match="no"):
        Actions(Store(folder / "runs")).resume(1, {})
    (interrupted / "lock").unlink()
    assert tenfold_("resume", "1", "--quiet").exit_code == 0
    assert tenfold_("remove", "1", "--yes").exit_code == 0
    assert sorted(folder.glob("private-*")) == sorted(privates)
    assert [path.read_text() for path in privates] == ["mine"] * 3


@looped("linked", ["1-mlp-digits", "1-mlp-digits/checkpoint", "3-mlp-digits", "trash", "tenfold.db"])
def test_links_to_folders_of_the_user_are_not_followed(folder, linked):
    """Nor one to the user's own store."""
    runs, private = folder / "runs", folder / f"private-{linked.replace('/', '-')}"
    private.mkdir()
    for name in ("model.pt", "epoch-1-worker-0.pt", "resume.log"):
        (private / name).write_text("mine")
    if linked == "tenfold.db":
        shutil.copy(runs / linked, private / linked)
    kept, target = folder / "kept", private / linked if linked == "tenfold.db" else private
    if (runs / linked).exists():
        (runs / linked).rename(kept)
    (runs / linked).symlink_to(target)
    before = {path: path.read_bytes() for path in private.rglob("*")}
    try:
        commands = {"trash": ("remove", "1", "--yes"), "3-mlp-digits": ("train", "--quiet", *TRAIN)}
        commands["tenfold.db"] = ("tag", "1", "seen")
        said = tenfold_(*commands.get(linked, ("resume", "1", "--quiet")))
        assert_one_sentence(said, "regular file" if linked == "tenfold.db" else "link")
        if linked.startswith("1-"):
            with pytest.raises(StoreError, match="link"):
                Actions(Store(runs)).resume(1, {})
        assert {path: path.read_bytes() for path in private.rglob("*")} == before
    finally:
        (runs / linked).unlink()
        if kept.exists():
            kept.rename(runs / linked)


@looped(
    ("change", "words"),
    [
        (lambda state: [*state.values()], "contains a list"),
        (lambda state: state | {"extra": torch.zeros(1)}, "extra"),
        (lambda state: dict(list(state.items())[1:]), "does not fit"),
        (lambda state: state | {"extra": 3}, "only tensors"),
        (lambda state: state | {3: torch.zeros(1)}, "only tensors"),
        (lambda state: {name: item.to(torch.float8_e4m3fn) for name, item in state.items()}, "float8"),
        (lambda state: {name: item.to("meta") for name, item in state.items()}, "meta"),
        (lambda state: {name: item.to_sparse() for name, item in state.items()}, "sparse"),
        (lambda state: {name: item.to(torch.int64) for name, item in state.items()}, "int64"),
        (lambda state: {name: item.new_zeros(3) for name, item in state.items()}, "does not fit"),
        (lambda state: {name: torch.zeros(1).expand(2**50) for name in state}, "too few"),
        (
            lambda state: state | {"input_mean": torch.zeros(1).expand(2**40), "input_deviation": torch.ones(1)},
            "too few",
        ),
    ],
)
def test_weights_that_are_not_those_of_the_model(folder, change, words):
    (path,) = (folder / "runs").glob("2-*/model.pt")
    kept = folder / "kept.pt"
    if not kept.exists():
        shutil.copy(path, kept)
    torch.save(change(torch.load(kept)), path)
    assert_one_sentence(tenfold_("predict", "2", "x.npy"), words)
    assert tenfold_("show", "2").exit_code == 0


def header(shape, descr="<f4"):
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    text += b" " * (118 - len(text) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@looped(
    "content",
    [
        header((2**50,)) + b"\0" * 64,
        header((2**50, 0)),
        header((2**62, 2**62, 2**62)),
        header((-1, 64)) + b"\0" * 512,
        header((2**50,), "|S0"),
        header((1,), "|O") + b"\x80\x04N.",
        header((16, 64)),
        header((True, 64)) + b"\0" * 256,
        header(((((((1,),),),),),)),
        b"\x93NUMPY\x01\x00\x40\x00{'descr': '<f4', 'fortran_order': False, 'shape': ((((".ljust(74),
        b"\x93NUMPY\x09\x09",
        b"\x93NUMPY\x01\x00\xff\xff{",
    ],
)
def test_arrays_that_are_larger_than_their_files(folder, content):
    import zipfile

    Path("x.npy").write_bytes(content)
    with zipfile.ZipFile("x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
        archive.writestr("y.npy", content)
    for name in ("x.npy", "x.npz"):
        for command in (("predict", "2", name), ("train", "--data", name, "--model", "mlp")):
            assert_one_sentence(tenfold_(*command), name)
    (path,) = (folder / "runs").glob("2-*/predictions.npz")
    with zipfile.ZipFile(path, "w") as archive:
        for column in ("samples", "outputs", "targets", "kind"):
            archive.writestr(f"test_{column}.npy", content)
    with pytest.raises(StoreError, match="damaged"):
        tenfold.open_run(2).predictions_on("test")
