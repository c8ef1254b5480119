"""Experiment files that a mutation has damaged, odd command lines, and faulty data sets and models."""

import json
import math
from typing import Any

from attempt import EXPERIMENT, LIMIT, Attempt, Fell, Said, save_experiment

SMALL = ("--set", "limit=60", "--set", "epochs=1", "--set", "workers=1", "--set", "threads=1", "--quiet")
VALUES: tuple[Any, ...] = (
    *(-1, 0, 1, 2**31, 2**63 - 1, 1e308, -0.0, float("nan"), float("inf"), True, False, "", " ", "a:b", "nan", "none"),
    *("../..", "x" * 300, "é\u202e\U0001f600", [], [1, "a"], {}, {"a": {"b": []}}, "line\nbreak", "digits", "sgd"),
)
COMMANDS = (
    *("train", "crossval", "compare", "launch", "resume", "runs", "show", "report", "init", "schema", "doctor"),
    *("simulate", "twin", "data list", "data where", "recipe list", "recipe show", "recipe", "data", "", "calibrate"),
)
SLOW = ("calibrate", "twin", "compare", "crossval", "simulate", "train")
OPTIONS = (
    *("--set", "--workers", "--epochs", "--model", "--data", "--lr", "--seed", "--strategy", "--device", "--pin"),
    *("--runs", "--json", "--quiet", "--help", "--threads", "--sync-every", "-o", "--folds", "--export", "--nope"),
)
WORDS = (
    *(
        "",
        " ",
        "-",
        "--",
        "0",
        "-1",
        "1e999",
        "nan",
        "last",
        "1",
        "999999999999999999999",
        "a=b",
        "lr=",
        "=1",
        "é\u202e",
    ),
    *("line\nbreak", "x" * 300, "/", "..", "/dev/null", "/proc/self/mem", "lr=nan", "workers=0", "data.name=digits"),
    *("a:b", "os:system", "digits", "mlp", "cpu", "cuda:99", "experiment.toml", "experiment.toml"),
)
MODULE = """
import torch
from torch import nn
from torch.utils.data import Dataset

AT = {at}

class Data(Dataset):
    def __len__(self):
        {length}

    def __getitem__(self, index):
        x, y = torch.zeros(4) + index % 2, index % 2
        if index == AT:
            {item}
        return x, y

def data():
    {made}
    return Data()

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.steps = nn.Linear(4, 2), 0
        {built}

    def forward(self, x):
        self.steps += 1
        if self.steps == 1 + AT % 7:
            {forward}
        return self.linear(x)
"""
FAULTS: dict[str, tuple[str, ...]] = {
    "item": (
        *("raise StopIteration", "raise RuntimeError('mine')", "raise KeyError(index)", "x = x * float('nan')"),
        *("x = x[:2]", "x = x.double()", "y = 7", "y = -1", "y = None", "x = None", "return x", "x = x.to_sparse()"),
        *("raise SystemExit(3)", "raise GeneratorExit", "x = 'text'", "y = float('nan')", "raise MemoryError"),
    ),
    "length": ("return 0", "return -1", "return 10**12", "raise RuntimeError('mine')", "return 1", "return 'many'"),
    "made": (
        *("return None", "return []", "return (torch.zeros(0, 4), torch.zeros(0))", "raise StopIteration", "yield 1"),
        *("return torch.zeros(4), torch.zeros(5)", "return (1, 2, 3, 4)", "import os; os.chdir('/')"),
    ),
    "built": (
        *("raise RuntimeError('mine')", "self.linear = nn.Linear(3, 2)", "self.linear = lambda x: x"),
        *("self.linear = nn.Linear(4, 2, dtype=torch.float64)", "self.extra = nn.Linear(2**20, 2**24)"),
        *("raise StopIteration", "raise SystemExit(4)"),
    ),
    "forward": (
        *("raise StopIteration", "raise RuntimeError('mine')", "return x", "return None", "raise SystemExit(5)"),
        *("self.linear = nn.Linear(4, 2)", "return self.linear(x)[:1]", "return self.linear(x).detach()"),
        *("self.linear.weight = nn.Parameter(torch.zeros(2, 4))", "return [self.linear(x)]", "x.resize_(0)"),
        *("del self.linear", "return x[:, :1] * float('inf')"),
    ),
}
HARMLESS = {"length": "return 40", "item": "pass", "made": "pass", "built": "pass", "forward": "pass"}


def file(attempt: Attempt) -> None:
    """A valid experiment file with mutated values, names or bytes."""
    import tomli_w

    chance = attempt.random
    fields: dict[str, Any] = {name: value for name, value in EXPERIMENT.items() if name not in ("epochs", "workers")}
    for _ in range(chance.randint(1, 3)):
        name = chance.choice(_field_names())
        fields[name] = chance.choice(VALUES)
    content = tomli_w.dumps(fields).encode()
    if chance.random() < 0.4:
        damaged = bytearray(content)
        for _ in range(chance.randint(1, 8)):
            place = chance.randrange(len(damaged))
            chance.choice(
                [
                    lambda place=place: damaged.__setitem__(place, chance.randrange(256)),
                    lambda place=place: damaged.__delitem__(slice(place, place + chance.randint(1, 9))),
                    lambda place=place: damaged.insert(place, chance.choice(b"[]{}=\"'\n\x00#.,")),
                ]
            )()
            if not damaged:
                break
        content = bytes(damaged)
    (attempt.folder / "experiment.toml").write_bytes(content)
    attempt.check_said(attempt.forked("train", "experiment.toml", *SMALL), (0, 2))


def command(attempt: Attempt) -> None:
    """Commands with odd options and arguments."""
    chance = attempt.random
    save_experiment(attempt.folder / "experiment.toml", EXPERIMENT | {"epochs": 1, "workers": 1, "limit": 60})
    command = chance.choice(COMMANDS)
    words = [
        word
        for _ in range(chance.randint(0, 4))
        for word in chance.choice([[chance.choice(OPTIONS)], [chance.choice(WORDS)], _pair(chance)])
    ]
    if command in SLOW:  # no training: what would be valid has one error
        words += ["--epochs", "many"]
    attempt.check_said(attempt.forked(*command.split(), *words), (0, 1, 2, 3))


def data(attempt: Attempt) -> None:
    """A data set that raises, lies about its length, or returns what it should not."""
    _faulty(attempt, ("item", "item", "length", "made"))


def model(attempt: Attempt) -> None:
    """A model that raises, returns what it should not, or changes itself."""
    _faulty(attempt, ("built", "forward", "forward"))


def _faulty(attempt: Attempt, places: tuple[str, ...]) -> None:
    chance = attempt.random
    place = chance.choice(places)
    fault, at = chance.choice(FAULTS[place]), chance.randrange(40)
    name = f"faulty{attempt.number}"
    (attempt.folder / f"{name}.py").write_text(MODULE.format(**HARMLESS | {place: fault}, at=at))
    workers = chance.choice([1, 1, 2])
    fields = {"model": f"{name}:Model", "data": f"{name}:data", "epochs": 2, "batch_size": 5, "workers": workers}
    fields |= {"threads": 1, "oversubscribe": True, "stratify": False}
    path = save_experiment(attempt.folder / "experiment.toml", fields)
    said = attempt.forked("train", str(path), "--json", limit=LIMIT)
    what = f"{place} with `{fault}` at {at}, {workers} workers"
    _check_own_error(said, f"{name}.py", what)
    if said.code == 0:
        _check_result(json.loads(said.out), what)
    attempt.runs()


def _check_own_error(said: Said, file: str, what: str) -> None:
    """A traceback may be printed for what the user's code raises, if it shows that code."""
    if "Traceback (most recent call last)" in said.text and file not in said.text.rpartition("Traceback")[2]:
        raise Fell(f"{what}: a traceback that does not show the user's code: {said.text[-3000:]}")
    if said.code not in (0, 1, 2):
        raise Fell(f"{what}: exit code {said.code}: {said.text[-1000:]}")
    if said.code and not said.err.strip():
        raise Fell(f"{what}: exit code {said.code} without a sentence")


def _check_result(run: dict[str, Any], what: str) -> None:
    """What is reported as finished has read every sample, and has numbers for results."""
    values = [value for value in (run.get("metrics") or {}).values() if value is not None]
    if not all(math.isfinite(value) for value in values):
        raise Fell(f"{what}: finished with {run['metrics']}")
    if run["samples"] is not None and run["samples"] % run["epochs"]:
        raise Fell(f"{what}: {run['samples']} samples in {run['epochs']} epochs")


def _field_names() -> list[str]:
    from tenfold.experiment import FIELDS

    return sorted(FIELDS)


def _pair(chance: Any) -> list[str]:
    return [chance.choice(OPTIONS), chance.choice(WORDS)]
