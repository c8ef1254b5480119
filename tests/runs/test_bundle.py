"""A run travels from one store to another: whole, or not at all."""

import io
import json
import pickle
import zipfile

import numpy as np
import pytest
import torch
from made_store import refused

import tenfold
from tenfold.experiment import Experiment
from tenfold.runs import Store
from tenfold.runs.bundle import pack, unpack
from tenfold.runs.events import Recorded

FIELDS = {"model": "mlp", "data": "digits", "epochs": 1, "threads": 1}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return tenfold.train(**FIELDS, runs=tmp_path_factory.mktemp("away"))


@pytest.fixture(scope="module")
def bundle(trained):
    return pack(trained.store, trained.id)


def changed(bundle, **members):
    """Return the bundle with other members: their content by name, None to leave one out."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(bundle)) as before, zipfile.ZipFile(written, "w") as after:
        held = {name: before.read(name) for name in before.namelist()} | members
        for name, content in held.items():
            if content is not None:
                after.writestr(name, content)
    return written.getvalue()


def imported(content, folder):
    store = Store(folder)
    return store, store.import_run(unpack(content), experiment=Experiment(**FIELDS), metadata={"command": "here"})


def test_everything_of_a_run_arrives(trained, bundle, tmp_path):
    tenfold.train(**FIELDS, runs=tmp_path)  # so that its number differs
    _, number = imported(bundle, tmp_path)
    run = tenfold.open_run(number, runs=tmp_path)
    assert (number, run.status, run.result, run.kind) == (2, "finished", trained.result, "train")
    assert run.metadata == trained.metadata | {"command": "here"}
    assert all(torch.equal(run.weights[name], value) for name, value in trained.weights.items())
    assert np.array_equal(run.predictions.outputs, trained.predictions.outputs)
    before, after = list(trained.store.events(trained.id)), list(run.store.events(number))
    assert [item for item in after if not isinstance(item, Recorded)] == [
        item for item in before if not isinstance(item, Recorded)
    ]
    assert next(item for item in after if isinstance(item, Recorded)).run == 2
    assert Experiment.load(run.path / "experiment.toml") == Experiment(**FIELDS)


def record_with(bundle, **entries):
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        return json.dumps(json.loads(archive.read("run.json")) | entries)


@pytest.mark.parametrize(
    "members",
    [
        {"files/../../escaped": b""},
        {"/escaped": b""},
        {"files/model.pickle": b""},
        {"files/model.pt": None},
        {"files/model.pt": b"no tensors"},
        {"files/model.pt": pickle.dumps({"weight": 1})},
        {"files/predictions.npz": b"no arrays"},
        {"events.jsonl": b'{"type": "metric"}\n'},
        {"events.jsonl": None},
        {"run.json": b"[]"},
        {"run.json": b"{" * 100_000},
    ],
)
def test_what_is_not_a_run_is_refused_and_nothing_is_recorded(bundle, tmp_path, members):
    store = Store(tmp_path / "home")
    assert refused(imported, changed(bundle, **members), store.folder)
    assert store.runs() == []
    assert sorted(path.name for path in tmp_path.rglob("*") if path.name.startswith("escaped")) == []
    assert [path for path in store.folder.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("entries", [{"status": "running"}, {"format": 2}, {"more": 1}, {"created": "x"}])
def test_entries_of_a_wrong_type_are_refused(bundle, entries):
    assert refused(unpack, changed(bundle, **{"run.json": record_with(bundle, **entries)}))


def test_a_changed_or_compressed_bundle_is_refused(bundle):
    middle = bundle.index(b"files/model.pt") + 200
    assert refused(unpack, bundle[:middle] + bytes([bundle[middle] ^ 1]) + bundle[middle + 1 :])
    assert refused(unpack, bundle[:-100])
    assert refused(unpack, b"")
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("run.json", b" " * 1_000_000)
    assert refused(unpack, written.getvalue())
