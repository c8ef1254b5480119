from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from transport_contract import Join, TransportContract, everybody

from tenfold.transport import SingleWorkerTransport


def join(numel: int, dtype: torch.dtype, rank: int) -> SingleWorkerTransport:
    assert rank == 0
    return SingleWorkerTransport(numel, dtype)


class TestAlone(TransportContract):
    sizes = (1,)

    @contextmanager
    def world(self, size: int, numel: int, dtype: torch.dtype = torch.float32) -> Iterator[Join]:
        yield partial(join, numel, dtype)

    def run(self, size: int, scenario: Callable[..., Any], *arguments: Any) -> list[Any]:
        way_in, *rest = arguments
        return [scenario(way_in, 0, *rest)]


def test_a_round_for_others_is_refused() -> None:
    with pytest.raises(ValueError, match="replicas"):
        SingleWorkerTransport(3).mix(everybody(2))
