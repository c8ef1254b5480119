"""A store with many finished runs, inserted as rows: training or recording that many would take too long."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tenfold.common.files import sealed_json
from tenfold.experiment import Experiment
from tenfold.runs import Store


def fill_store(
    folder: Path, runs: int, experiments: Sequence[Experiment], metadata: dict[str, Any], result: dict[str, Any]
) -> Store:
    """Return a store with the runs 1, 2, ..., called run-1, run-2, ..., of these experiments in turn."""
    store = Store(folder)
    dumped = [sealed_json(experiment.model_dump(mode="json")) for experiment in experiments]
    described = sealed_json(metadata), sealed_json(result)
    with sqlite3.connect(store.file) as connection:
        connection.executemany(
            "INSERT INTO runs (title, kind, status, created, ended, experiment, metadata, result, host, pid, "
            "pid_started) VALUES (?, 'train', 'finished', ?, ?, ?, ?, ?, 'here', 1, 0)",
            (
                (f"run-{number}", 1.7e9 + number, 1.7e9 + number + 60, dumped[number % len(dumped)], *described)
                for number in range(1, runs + 1)
            ),
        )
    return store
