"""What torch's transport makes of a group that it finds, and of the names that hosts have."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tenfold.errors import MachineError
from tenfold.transport import torch_distributed
from tenfold.transport.torch_distributed import TorchDistributed, choose_interface

GPU = torch.device("cuda")


@contextmanager
def group(backends: str | None) -> Iterator[Any]:
    """Begin a group of one, as a user may have done."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    dist.init_process_group(backends, store=dist.PrefixStore("user", store), rank=0, world_size=1)
    try:
        yield store
    finally:
        dist.destroy_process_group()


class TestAGroupOfTheUsers:
    def test_one_that_carries_nothing_between_cpus_is_refused(self) -> None:
        with group("cuda:gloo") as store, pytest.raises(MachineError) as error:
            TorchDistributed(store, 0, 1)
        assert str(error.value) == (
            "the process group uses cuda:gloo, which cannot send CPU tensors; "
            'call init_process_group("cpu:gloo,cuda:nccl")'
        )

    @pytest.mark.parametrize("backends", ["gloo", "cpu:gloo"])
    def test_gloo_carries_what_is_on_the_cpu(self, backends: str) -> None:
        with group(backends) as store:
            network = TorchDistributed(store, 0, 1)
            assert network.supports(torch.device("cpu"))
            assert not network.supports(GPU)
            network.close()
            assert dist.is_initialized()

    def test_nccl_is_found_whatever_the_group_is_called(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dist, "get_backend", lambda: "undefined")
        monkeypatch.setattr(dist, "get_backend_config", lambda: "cpu:gloo,cuda:nccl")
        monkeypatch.setattr(TorchDistributed, "_has_own_gpu", lambda *_: True)
        with group("cpu:gloo") as store:
            network = TorchDistributed(store, 0, 1)
            assert network.supports(GPU)
            network.close()


class Probe:
    """A socket that knows the ways out of a host with one network."""

    def __init__(self, *_: Any) -> None:
        self.address = ""

    def __enter__(self) -> "Probe":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def connect(self, place: tuple[str, int]) -> None:
        self.address = "127.0.0.1" if place[0].startswith("127.") else "10.0.0.5"

    def getsockname(self) -> tuple[str, int]:
        return self.address, 0


@pytest.mark.parametrize(
    ("master", "known_as", "expected"),
    [
        ("node1", "127.0.1.1", "eth0"),
        ("node1", "127.0.0.1", "eth0"),
        ("node1", "10.0.0.5", "eth0"),
        ("node2", "10.0.0.6", "eth0"),
        ("localhost", "127.0.0.1", "lo"),
        ("127.0.0.1", "127.0.0.1", "lo"),
        ("127.0.0.2", "127.0.0.2", "lo"),
    ],
)
def test_gloo_takes_the_network_that_leads_to_the_others(
    master: str, known_as: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables: dict[str, str] = {}
    addresses = {"lo": "127.0.0.1", "eth0": "10.0.0.5"}
    found = {name: [SimpleNamespace(address=address)] for name, address in addresses.items()}
    monkeypatch.setattr(torch_distributed.os, "environ", variables)
    monkeypatch.setattr(torch_distributed.psutil, "net_if_addrs", lambda: found)
    monkeypatch.setattr(socket, "gethostbyname", {master: known_as}.__getitem__)
    monkeypatch.setattr(socket, "socket", Probe)
    choose_interface(master)
    assert variables == {"GLOO_SOCKET_IFNAME": expected}
