import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fake_machines import write
from torch import nn

from tenfold.errors import MachineError
from tenfold.machine.devices import Gpu, gpus, has_nvidia_card, resolve, start_libraries

Pretend = pytest.MonkeyPatch


@pytest.fixture
def pretend(monkeypatch: Pretend):
    """Make torch believe in so many CUDA devices, a build with or without CUDA, and a Mac or none."""

    def become(cuda: int = 0, built: bool = True, mps: bool = False) -> None:
        card = SimpleNamespace(name="Card", total_memory=16 * 2**30, major=9, minor=0)
        monkeypatch.setattr(torch, "__version__", "2.99")
        monkeypatch.setattr(torch.version, "cuda", "12.9" if built else None)
        monkeypatch.setattr(torch.version, "hip", None)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
        monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 8 * 2**30)

    return become


@pytest.mark.parametrize(
    ("cuda", "mps", "kind"), [(1, True, "cuda"), (1, False, "cuda"), (0, True, "mps"), (0, False, "cpu")]
)
def test_auto_takes_the_fastest(pretend, cuda: int, mps: bool, kind: str) -> None:
    pretend(cuda=cuda, mps=mps)
    assert resolve("auto") == torch.device(kind)


def test_what_is_there_resolves(pretend) -> None:
    pretend(cuda=2, mps=True)
    assert [str(resolve(name)) for name in ("cuda", "cuda:1", "mps")] == ["cuda", "cuda:1", "mps"]


@pytest.mark.parametrize(
    ("machine", "device", "sentence"),
    [
        ({"built": False}, "cuda", "CUDA build"),
        ({"built": False, "mps": True}, "cuda:1", "'mps' or 'cpu'"),
        ({}, "cuda", "nvidia-smi"),
        ({"cuda": 2}, "cuda:2", "'cuda:1'"),
        ({}, "mps", "Apple"),
        ({}, "cdua", "did you mean 'cuda'"),
        ({}, "tpu:0", "known: auto"),
    ],
)
def test_what_is_not_there_is_explained(pretend, machine: dict, device: str, sentence: str) -> None:
    pretend(**machine)
    with pytest.raises(MachineError, match=re.escape(sentence)):
        resolve(device)


@pytest.mark.parametrize("device", ["cuda:", "cuda:x", "cuda:-1", "cpu:0", "mps:1", "", ":"])
def test_malformed_names_are_unknown(pretend, device: str) -> None:
    pretend(cuda=1, mps=True)
    with pytest.raises(MachineError, match="unknown device"):
        resolve(device)


def test_gpus_are_listed(pretend) -> None:
    pretend(cuda=2)
    assert gpus() == [Gpu(f"cuda:{index}", "Card", 16 * 2**30) for index in range(2)]
    pretend(mps=True)
    assert gpus() == [Gpu("mps", "Apple GPU", 8 * 2**30)]
    pretend()
    assert gpus() == []


def test_a_process_forked_from_one_that_uses_cuda_has_no_gpu(pretend, monkeypatch: Pretend) -> None:
    def refuse(_: int) -> None:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")

    pretend(cuda=1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", refuse)
    assert gpus() == []
    assert resolve("auto") == torch.device("cpu")
    with pytest.raises(MachineError, match="forked"):
        resolve("cuda")


def test_an_nvidia_card_is_seen_with_and_without_its_driver(tmp_path: Path) -> None:
    pci = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    assert not has_nvidia_card(tmp_path)
    write(pci / "vendor", "0x10de")
    write(pci / "class", "0x040300")
    assert not has_nvidia_card(tmp_path), "an audio device of NVIDIA's is no card"
    write(pci / "class", "0x030200")
    assert has_nvidia_card(tmp_path)
    write(tmp_path / "driver/proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: Card")
    assert has_nvidia_card(tmp_path / "driver")


class Untouchable(nn.Sequential):
    def forward(self, x):
        raise AssertionError("the network was called")


@pytest.mark.parametrize("bf16", [False, True])
def test_libraries_are_started_without_the_network_and_without_random_numbers(bf16):
    network = Untouchable(nn.Conv2d(1, 2, 3), nn.Linear(8, 2))
    drawn, threads = torch.get_rng_state(), torch.get_num_threads()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        start_libraries(network, torch.device("cpu"), [4, 1])
    assert torch.equal(torch.get_rng_state(), drawn)
    assert torch.get_num_threads() == threads
    assert all(parameter.grad is None for parameter in network.parameters())
