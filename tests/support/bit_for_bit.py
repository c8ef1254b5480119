"""Train one experiment per engine and strategy, and compare the digests of the final weights with recorded ones.

    python tests/support/bit_for_bit.py record before.json    # before a change that must not alter any weight
    python tests/support/bit_for_bit.py check before.json     # after it; names every experiment whose weights differ

Digests depend on the processor and on the version of torch, so they are compared on one machine and not committed.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import tenfold

SETTINGS = {"optimizer": "sgd", "schedule": "cosine", "average": "weights", "optimizer_state": "local"}
BASE: dict[str, Any] = SETTINGS | {"model": "mlp", "data": "digits", "epochs": 2, "batch_size": 32, "threads": 1}
ROUNDS = ("allreduce", "butterfly", "ring", "hopping-ring", "gossip", "hierarchical", "parameter-server", "none")
ASYNCHRONOUS = ("downpour", "easgd", "ad-psgd")
BY_HAND = {
    "groups": [{"count": 4, "step_seconds": 0.01, "link": "10gbe"}],
    "stragglers": {"persistent": 0.1, "transient": 0.2},
}
STACKED: dict[str, dict[str, Any]] = {
    "allreduce": {"batchnorm": True, "validation_fraction": 0.1, "patience": 1},
    "butterfly vmap": {"strategy": "butterfly", "stacking": "vmap", "outer": "none", "dropout": 0.2},
    "average state": {"optimizer": "adam", "optimizer_state": "average", "clip": 1.0, "sync_every": 3},
    "reset state": {"optimizer_state": "reset"},
    "gradients": {"average": "gradients", "evaluate_every": 0.5},
    "int8 bmuf": {"compression": "int8", "outer": "bmuf"},
}


def experiments() -> dict[str, dict[str, Any]]:
    """Every experiment by a name; asynchronous strategies are repeatable on the virtual cluster only."""
    found: dict[str, dict[str, Any]] = {
        "serial": {},
        "serial adamw bf16": {"optimizer": "adamw", "precision": "bf16", "schedule": "one-cycle"},
        "serial lenet5 dropout": {"model": "lenet5", "dropout": 0.2},
        "serial batchnorm": {"batchnorm": True, "clip": 1.0, "validation_fraction": 0.1, "patience": 1},
    }
    for strategy in ROUNDS:
        found[f"processes {strategy}"] = {"workers": 3, "strategy": strategy, "oversubscribe": True}
    for strategy in (*ROUNDS, *ASYNCHRONOUS):
        found[f"virtual {strategy}"] = {"workers": 4, "strategy": strategy, "engine": "virtual", "cluster": BY_HAND}
    for outer in ("bmuf", "slowmo", "diloco"):
        found[f"processes {outer}"] = {"workers": 2, "outer": outer}
    for compression in ("bf16", "int8", "topk", "1bit"):
        found[f"processes {compression}"] = {"workers": 2, "compression": compression}
    for name, fields in STACKED.items():
        found[f"one device {name}"] = {
            "workers": 3,
            "engine": "one-device",
            "device": "cpu",
            "stacking": "loop",
        } | fields
    found["processes gradients"] = {"workers": 2, "average": "gradients", "warmup": 0.4}
    found["processes average state"] = {"workers": 2, "optimizer_state": "average", "optimizer": "adam"}
    found["processes skew"] = {"workers": 2, "shards": "label-skew", "batchnorm": True}
    return found


def digest(weights: dict[str, Any]) -> str:
    """Return a digest of a network's state."""
    found = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        found.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def launched(runs: str) -> dict[str, str]:
    """Train under torchrun and mpirun."""
    program = (
        "import sys, json, tenfold; sys.path.insert(0, 'tests/support'); from bit_for_bit import BASE, digest;"
        f"run = tenfold.train(**BASE, strategy='butterfly', oversubscribe=True, runs={runs!r});"
        "print(f'digest {digest(run.weights)}\\n', end='')"  # in one piece: the ranks print at the same time
    )
    script = Path(runs) / "program.py"
    script.write_text(program)
    folder = Path(sys.executable).parent
    commands = {
        "torchrun": [str(folder / "torchrun"), "--nproc-per-node", "2", str(script)],
        "mpirun": [
            str(folder / "mpirun"),
            "--allow-run-as-root",
            "--oversubscribe",
            "-n",
            "2",
            sys.executable,
            str(script),
        ],
    }
    found = {}
    for name, command in commands.items():
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        digests = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("digest")}
        found[f"launched {name}"] = digests.pop() if len(digests) == 1 else f"failed: {done.stderr[-300:]}"
    return found


def measure() -> dict[str, str]:
    """Return the digest of every experiment's weights."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as runs:
        for name, fields in experiments().items():
            found[name] = digest(tenfold.train(**BASE | fields, runs=runs).weights)
        for mode, fields in {
            "over workers": {},
            "data and folds": {"workers": 2, "fold_mode": "data-and-folds"},
            "on one device": {"fold_mode": "stacked", "stacking": "loop", "patience": 1},
            "with workers on one device": {"workers": 2, "fold_mode": "stacked", "stacking": "loop", "batchnorm": True},
            "with gradients on one device": {
                "workers": 2,
                "fold_mode": "stacked",
                "stacking": "loop",
                "average": "gradients",
            },
        }.items():
            folds = tenfold.cross_validate(**BASE | fields, folds=3, runs=runs)
            found[f"folds {mode}"] = " ".join(digest(run.weights) for run in folds.runs)
        found |= launched(runs)
    return found


def main() -> int:
    """Record digests, or compare them with recorded ones."""
    verb, path = sys.argv[1], Path(sys.argv[2])
    now = measure()
    if verb == "record":
        path.write_text(json.dumps(now, indent=1))
        print(f"{len(now)} digests recorded")
        return 0
    before = json.loads(path.read_text())
    wrong = [name for name in before if now.get(name) != before[name]]
    for name in wrong:
        print(f"{name}: {before[name]} before, {now.get(name)} now")
    print(f"{len(before) - len(wrong)} of {len(before)} the same")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
