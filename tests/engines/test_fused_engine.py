"""Several workers that step together on one device, here the CPU."""

from typing import Any

import pytest
import torch
from engine_contract import EngineContract
from engine_models import LAWFUL, train

import tenfold
from tenfold.errors import ModelError
from tenfold.runs import Event, Span

FUSED: dict[str, Any] = {"engine": "one-device", "workers": 3, "strategy": "ring", "sync_every": 2, "stacking": "loop"}


class TestFused(EngineContract):
    fields: dict[str, Any] = FUSED

    def test_every_worker_tells_where_its_time_goes(self, whole: tenfold.Run, events: list[Event]) -> None:
        """They step together, so the first tells for all."""
        kinds = {event.kind for event in events if isinstance(event, Span)}
        assert {"compute", "evaluate"} <= kinds

    def test_a_model_that_does_not_fit_the_data_is_a_sentence(self) -> None:
        with pytest.raises(ModelError, match="RuntimeError"):
            self.train(model=lambda: torch.nn.Linear(3, 2), hidden=None, batchnorm=None, dropout=None)
        assert tenfold.open_run().status == "failed"


def test_more_workers_than_cores_share_the_device() -> None:
    run = train(**LAWFUL | {"engine": "one-device", "workers": 16, "epochs": 1})
    assert run.result["workers"] == 16
    assert run.metadata["shards"]["once"]
