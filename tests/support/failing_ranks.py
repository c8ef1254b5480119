"""Experiments for several ranks in which one of them fails when it meets a certain sample."""

from typing import Any

import tenfold
from tenfold.engines.prepare import prepare
from tenfold.workers.task import Resolved

NUMBERED: dict[str, Any] = {
    "data": "engine_models:numbered",
    "data_options": {"samples": 60},
    "test_fraction": 0.2,
    "stratify": False,
    "shards": "contiguous",
    "batch_size": 4,
    "epochs": 3,
    "lr": 0.01,
    "threads": 1,
    "oversubscribe": True,
}


def failing(
    how: str, rank: int, epoch: int, *, ranks: int = 2, model: str = "engine_models:Failing", **more: Any
) -> dict[str, Any]:
    """Return an experiment that ends one of the ranks in this way, in this epoch."""
    task = prepare(Resolved.of(tenfold.Experiment(**NUMBERED, model="mlp", workers=ranks)))
    number = int(next(task.splits.train.batches([task.shards[rank][:1]]))[0][0, 0])
    return NUMBERED | {"model": model, "model_options": {"number": number, "epoch": epoch, "how": how}} | more
