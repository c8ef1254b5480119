"""Stores, recipes and folders of somebody else, made so that reading or resuming them would run code or wait."""

import os
import pickle
import shutil
import sqlite3
from pathlib import Path
from typing import Any

from attempt import Attempt, Fell, save_experiment
from storage_faults import recorded_store

from tenfold.common.files import read_sealed, sealed_json

LIMIT = 60.0
PLANTED = """
from pathlib import Path

Path({marker!r}).touch()

def anything(*args, **options):
    Path({marker!r}).touch()

class Nested:
    anything = anything
"""
PATHS = (
    *("planted:anything", "planted:Nested.anything", "planted_package.inner:anything", "planted_package:Nested"),
    *(
        "os:system",
        "subprocess:call",
        "builtins:exec",
        "builtins:eval",
        "pickle:loads",
        "runpy:run_path",
        "code:interact",
    ),
    *("torch:load", "torch.nn:modules.module.warnings.sys.exit", "torch.nn.functional:importlib.import_module"),
    *(
        "torch.utils.cpp_extension:load_inline",
        "tenfold.cli:main",
        "this:s",
        "planted:",
        ":anything",
        ":",
        "planted:a:b",
    ),
    *(
        "numpy:load",
        "pathlib:Path.touch",
        "importlib:import_module",
        "tenfold.experiment.values:PythonObject.unpickled",
    ),
)
FIELDS = (
    *(("model", "name"), ("data", "name"), ("data", "collate"), ("data", "groups"), ("training", "loss")),
    *(("training", "metrics"), ("training", "optimizer"), ("training", "schedule"), ("parallel", "strategy")),
    *(("parallel", "outer"), ("parallel", "compression"), ("machine", "engine"), ("machine", "transport")),
)
COMMANDS: tuple[tuple[str, ...], ...] = (
    *(("predict", "1", "x.npy"), ("evaluate", "1"), ("evaluate", "1", "--part", "train"), ("resume", "1", "--quiet")),
    *(("export", "1", "-f", "torch"), ("export", "1"), ("runs", "--json"), ("show", "1"), ("report", "1"), ("doctor",)),
    *(("recommend", "1"), ("runs", "--filter", "accuracy>0.5"), ("train", "RUN/experiment.toml", "--epochs", "1")),
)
FILES = (
    *("model.pt", "console.txt", "predictions.npz", "lock", "experiment.toml", "checkpoint", "model.pickle"),
    *("checkpoint/manifest.json", ".console.txt.part", "resume.log"),
)


class Malice:
    """A pickle that makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def foreign(attempt: Attempt) -> None:
    """Use what somebody else has made, in the folder that it came in; nothing in it may run, and nothing may wait."""
    marker, private = attempt.folder / "OWNED", attempt.folder / "private"
    private.write_text("mine")
    _plant(attempt.folder, marker)
    kinds = {"record": _record, "file": _special_file, "weights": _weights, "pickle": _pickle, "recipe": _recipe}
    kinds |= {"sweep": _sweep}
    chosen = attempt.random.sample(sorted(kinds), attempt.random.randint(1, 2))
    chosen.sort(key="file".__eq__)  # last: it may leave nothing for the others to change
    shutil.copytree(recorded_store(attempt.work, attempt.random.random() < 0.5), attempt.folder / "runs")
    commands = attempt.random.sample(COMMANDS, 3)
    for kind in chosen:
        commands = kinds[kind](attempt, marker) or commands
    (folder,) = (attempt.folder / "runs").glob("1-*")
    for command in commands:
        words = [word.replace("RUN", str(folder)) for word in command]
        said = attempt.forked(*words, limit=LIMIT)
        if marker.exists():
            raise Fell(f"`tenfold {' '.join(words)}` ran code of somebody else's {' and '.join(chosen)}: {said.text}")
        attempt.check_said(said, (0, 1, 2, 3))
        if private.read_text() != "mine":
            raise Fell(f"`tenfold {' '.join(words)}` wrote to a file that a store links to")


def _plant(folder: Path, marker: Path) -> None:
    import numpy as np

    text = PLANTED.format(marker=str(marker))
    (folder / "planted.py").write_text(text)
    (folder / "planted_package").mkdir()
    (folder / "planted_package" / "__init__.py").write_text(text)
    (folder / "planted_package" / "inner.py").write_text(text)
    np.save(folder / "x.npy", np.zeros((2, 64), dtype=np.float32))


def _record(attempt: Attempt, marker: Path) -> None:
    """Change the record of a run: what it names, and the options of what it names."""
    connection = sqlite3.connect(attempt.folder / "runs" / "tenfold.db")
    with connection:
        (text,) = connection.execute("SELECT experiment FROM runs WHERE id = 1").fetchone()
        experiment = read_sealed(text)
        for section, name in attempt.random.sample(FIELDS, attempt.random.randint(1, 3)):
            path = attempt.random.choice(PATHS)
            experiment[section][name] = [path] if name == "metrics" else path
            if name == "name":
                experiment[section]["options"] = _options(attempt, marker)
        if experiment["model"]["name"] != "mlp":
            experiment["model"] |= {"hidden": None, "dropout": None, "batchnorm": None}
        connection.execute("UPDATE runs SET experiment = ? WHERE id = 1", (sealed_json(experiment),))
    connection.close()


def _sweep(attempt: Attempt, marker: Path) -> list[tuple[str, ...]]:
    """Make a sweep and its only trial of the run, which name code and pretend that what names it was varied."""
    connection = sqlite3.connect(attempt.folder / "runs" / "tenfold.db")
    with connection:
        columns = connection.execute("SELECT experiment, metadata, result FROM runs WHERE id = 1").fetchone()
        experiment, metadata, result = map(read_sealed, columns)
        space = {"lr": "0.1:1"}
        for section, name in attempt.random.sample(FIELDS, attempt.random.randint(1, 2)):
            path = attempt.random.choice(PATHS)
            experiment[section][name] = [path] if name == "metrics" else path
            space |= {section if name == "name" else name: "[]"}
            if name == "name":
                experiment[section]["options"] = _options(attempt, marker)
                space[f"{section}_options"] = "[]"
        about = {"objective": "loss", "lower": True, "part": "test", "space": space, "trials": 1}
        trial = {"parent": 1, "number": 1, "values": {"lr": 0.1}}
        connection.execute(
            "INSERT INTO runs (title, kind, status, created, experiment, metadata, result, host, pid, pid_started) "
            "SELECT title, 'trial', 'finished', created, ?, ?, ?, host, pid, pid_started FROM runs WHERE id = 1",
            (
                sealed_json(experiment),
                sealed_json(metadata | {"trial": trial}),
                sealed_json(result | {"trial": {"value": 0.5, "curve": []}}),
            ),
        )
        connection.execute(
            "UPDATE runs SET kind = 'sweep', metadata = ? WHERE id = 1",
            (sealed_json(metadata | {"sweep": about}),),
        )
    connection.close()
    return [("train", "--from-sweep", "last", "--quiet"), ("show", "1"), ("predict", "1", "x.npy")]


def _options(attempt: Attempt, marker: Path) -> dict[str, Any]:
    touch = f"touch {marker}"
    return attempt.random.choice(
        [{"command": touch}, {"args": touch, "shell": True}, {"source": f"open({str(marker)!r}, 'w')"}, {}]
    )


def _special_file(attempt: Attempt, _marker: Path) -> None:
    """Put a pipe, a device, a folder, or a link to a file of the user in the place of a file of a run."""
    (folder,) = (attempt.folder / "runs").glob("1-*")
    name = attempt.random.choice([*FILES, "../tenfold.db-wal", "../tenfold.db-journal"])
    path = folder / name
    if path.is_dir():
        shutil.rmtree(path)
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    kind = attempt.random.choice(["pipe", "device", "folder", "link", "loop"])
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to({"device": "/dev/zero", "link": attempt.folder / "private", "loop": path}[kind])


def _weights(attempt: Attempt, marker: Path) -> None:
    """Put something else than a network's state into model.pt, or into all checkpoints."""
    import torch

    weight = torch.zeros(4, 4)
    states: list[Any] = [
        *([weight], {"extra": weight}, {0: weight}, {"0.weight": 1}, weight, None, {"weight": Malice(marker)}),
        {"0.weight": weight.to("meta")},
        {"0.weight": weight.to(torch.float8_e5m2)},
        {"0.weight": weight.to_sparse()},
        {"0.weight": torch.zeros(1).expand(2**50)},
    ]
    for path in [
        *(attempt.folder / "runs").glob("1-*/model.pt"),
        *(attempt.folder / "runs").glob("1-*/checkpoint/*.pt"),
    ]:
        torch.save(attempt.random.choice(states), path)


def _pickle(attempt: Attempt, marker: Path) -> None:
    """Let the record name a Python object, which is pickled beside it."""
    connection = sqlite3.connect(attempt.folder / "runs" / "tenfold.db")
    with connection:
        (text,) = connection.execute("SELECT experiment FROM runs WHERE id = 1").fetchone()
        experiment = read_sealed(text)
        experiment["model"]["name"] = "<Net>"
        connection.execute("UPDATE runs SET experiment = ? WHERE id = 1", (sealed_json(experiment),))
    connection.close()
    for folder in (attempt.folder / "runs").glob("1-*"):
        (folder / "model.pickle").write_bytes(pickle.dumps(Malice(marker)))
        (folder / "predictions.npz").write_bytes(pickle.dumps(Malice(marker)))


def _recipe(attempt: Attempt, marker: Path) -> list[tuple[str, ...]]:
    """Write a recipe, and an experiment file that names installed code."""
    path = attempt.random.choice([path for path in PATHS if path.partition(":")[2]])
    field = attempt.random.choice(["model", "loss", "data", "collate", "groups", "optimizer", "schedule", "metrics"])
    value = [path] if field == "metrics" else path
    small = {"model": "mlp", "data": "digits", "limit": 40, "epochs": 1, "threads": 1}
    block = attempt.random.choice(
        [{"fields": {field: value}}, {"vary": {field: [value]}}, {"together": [{field: value}]}]
    )
    recipe = {"name": "theirs", "title": "theirs", "paper": {"key": "x", "citation": "x", "place": "x"}}
    verb = attempt.random.choice(["train", "crossval", "simulate", "forecast"])
    save_experiment(attempt.folder / "recipe.toml", recipe | {"experiment": small, "blocks": [block | {"verb": verb}]})
    options = {"model_options": _options(attempt, marker)} if field == "model" else {}
    fields = small | {"name": "theirs", field: ["os:system"] if field == "metrics" else "os:system"} | options
    save_experiment(attempt.folder / "theirs.toml", fields)
    return [("recipe", "run", "recipe.toml"), ("recipe", "show", "recipe.toml"), ("train", "theirs.toml", "--quiet")]
