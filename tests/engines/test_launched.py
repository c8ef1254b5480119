"""Which engine a launcher's environment leads to, what ranks cannot do, and how data are scattered."""

import threading
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from torch import Tensor

from tenfold.data import Tensors
from tenfold.engines import choose, resolve, validate
from tenfold.engines.launched import Launched
from tenfold.engines.launched_rank import Scattered, launch_name, scatter
from tenfold.engines.prepare import prepare
from tenfold.engines.processes import Serial
from tenfold.errors import DataError, ExperimentError, MachineError
from tenfold.experiment import Experiment, Training
from tenfold.launchers import World, detect_world
from tenfold.mixing.round import exact_round, shifted_round
from tenfold.training.stacked_replicas import find_capture_obstacle
from tenfold.transport.meeting import network_of
from tenfold.transport.network import Network, NetworkTransport, Transfers
from tenfold.workers.task import Resolved

WORLD = World(1, 4, 1, 2, "torchrun", "night")


@pytest.fixture
def under_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)


class TestChoice:
    def test_a_launcher_leads_to_the_launched_engine(self, under_torchrun: None) -> None:
        engine = resolve(Experiment()).engine
        assert isinstance(engine, Launched)
        assert (engine.world.rank, engine.world.size) == (1, 4)
        assert not engine.records

    def test_a_world_of_one_does_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "1")
        assert issubclass(choose(Experiment(), detect_world()), Serial)
        assert issubclass(choose(Experiment(engine="launched"), detect_world()), Launched)

    @pytest.mark.parametrize("fields", [{"engine": "launched"}, {"transport": "torch"}, {"transport": "mpi"}])
    def test_without_a_launcher_it_is_a_sentence(self, fields: dict[str, str]) -> None:
        with pytest.raises(ExperimentError, match="launcher"):
            validate(Experiment(**fields), None)

    @pytest.mark.parametrize(
        ("fields", "sentence"),
        [
            ({"workers": 3}, r"parallel\.workers"),
            ({"engine": "processes", "workers": 4}, "processes"),
            ({"strategy": "easgd"}, "easgd"),
            ({"engine": "virtual"}, "virtual"),
            ({"strategy": "ring", "outer": "bmuf"}, "identical"),
        ],
    )
    def test_what_ranks_cannot_do_is_a_sentence(
        self, under_torchrun: None, fields: dict[str, Any], sentence: str
    ) -> None:
        with pytest.raises(ExperimentError, match=sentence):
            validate(Experiment(**fields), detect_world())

    @pytest.mark.parametrize("workers", [1, 4])
    def test_the_launcher_says_how_many_workers_there_are(self, workers: int) -> None:
        validate(Experiment(workers=workers), WORLD)
        assert issubclass(choose(Experiment(workers=workers), WORLD), Launched)

    @pytest.mark.parametrize(
        ("launcher", "variables", "network"),
        [
            ("torchrun", {}, "torch"),
            ("open-mpi", {"MASTER_ADDR": "a"}, "mpi"),
            ("slurm", {}, "mpi"),
            ("slurm", {"MASTER_ADDR": "a"}, "torch"),
        ],
    )
    def test_the_network_fits_the_launcher(self, launcher: str, variables: dict[str, str], network: str) -> None:
        assert network_of(World(0, 2, 0, 2, launcher), variables) == network

    def test_torch_needs_a_meeting_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from tenfold.transport.torch_distributed import TorchDistributed

        monkeypatch.delenv("MASTER_ADDR", raising=False)
        monkeypatch.setenv("MASTER_PORT", "29500")
        with pytest.raises(MachineError, match="MASTER_ADDR"):
            TorchDistributed.join(World(0, 2, 0, 2, "open-mpi"))

    def test_a_launch_has_a_name_that_outlives_its_ranks(self) -> None:
        assert launch_name(WORLD) == "night"
        unnamed = World(0, 2, 0, 2, "torchrun")
        assert launch_name(unnamed) == launch_name(unnamed) != ""


class Mail(Network):
    """A network between threads of one process."""

    name = "threads"

    takes = ("cpu",)

    def __init__(self, rank: int, size: int, boxes: dict[tuple[int, int], "SimpleQueue[Tensor]"]) -> None:
        super().__init__(rank, size)
        self.boxes = boxes

    def exchange(self, sends: Transfers, receives: Transfers, timeout: float | None = None) -> None:
        for rank, tensor in sends:
            self.boxes[self.rank, rank].put(tensor.clone())
        for rank, tensor in receives:
            tensor.copy_(self.boxes[rank, self.rank].get(timeout=10))

    def all_reduce(self, tensor: Tensor) -> None:
        tensor.copy_(torch.stack(self.all_gather(tensor)).sum(0))

    def supports(self, device: torch.device) -> bool:
        return device.type in self.takes

    def report_failure(self, error: BaseException | None = None) -> None:
        raise AssertionError(error)

    def close(self) -> None: ...


def among(size: int, play: Callable[[Network], Any]) -> list[Any]:
    """Let as many threads play a part, and return what each returns."""
    boxes: dict[tuple[int, int], SimpleQueue[Tensor]] = {
        (src, dst): SimpleQueue() for src in range(size) for dst in range(size)
    }
    results: dict[int, Any] = {}
    ranks = [
        threading.Thread(target=lambda rank=rank: results.update({rank: play(Mail(rank, size, boxes))}))
        for rank in range(size)
    ]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join(20)
    return [results[rank] for rank in range(size)]


class TestSmallTalk:
    def test_gather_and_broadcast(self) -> None:
        def play(network: Network) -> tuple[Any, Any, Any]:
            network.barrier(timeout=5)
            return (
                network.gather({"rank": network.rank}),
                network.broadcast("all" if not network.rank else None),
                (network.all_gather(network.rank)),
            )

        results = among(3, play)
        assert results[0][0] == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
        assert results[1][0] == results[2][0] == []
        assert {said for _, said, _ in results} == {"all"}
        assert [everyone for *_, everyone in results] == [[0, 1, 2]] * 3


class TestStaging:
    @pytest.mark.parametrize("takes", [("cpu",), ()], ids=["taken", "staged"])
    def test_weights_that_the_network_cannot_take_are_brought_to_where_it_can(
        self, takes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Mail, "takes", takes)

        def play(network: Network) -> tuple[Tensor, Tensor]:
            transport = NetworkTransport(network, torch.zeros(5))
            transport.buffer.fill_(network.rank)
            transport.mix(exact_round(3), [1.0, 1.0, 2.0])
            mixed = transport.buffer.clone()
            transport.mix(shifted_round(3, (1,)))
            transport.buffer.fill_(network.rank)
            transport.broadcast(root=2)
            return mixed, transport.buffer

        for mixed, sent in among(3, play):
            torch.testing.assert_close(mixed, torch.full((5,), 1.25))
            assert torch.equal(sent, torch.full((5,), 2.0))


class TestScatter:
    FIELDS: dict[str, Any] = {"data": "digits", "limit": 101, "validation_fraction": 0.2, "workers": 3}  # noqa: RUF012

    @pytest.mark.parametrize("shards", ["iid", "label-skew"])
    def test_every_rank_gets_what_it_needs_and_no_more(self, shards: str) -> None:
        experiment = Experiment(**self.FIELDS, shards=shards, threads=1, oversubscribe=True)
        whole = prepare(Resolved.of(experiment))
        splits = among(3, lambda network: scatter(network, whole if network.rank == 0 else None))
        for rank in (1, 2):
            task = replace(whole, splits=splits[rank])
            assert [list(shard) for shard in task.shards] == [list(shard) for shard in whole.shards]
            assert (splits[rank].shape, splits[rank].classes) == (whole.splits.shape, whole.splits.classes)
            for name, rows in [
                ("train", torch.as_tensor(whole.shards[rank])),
                ("validation", whole.share(whole.splits.validation, rank)),  # type: ignore[arg-type]
                ("test", whole.share(whole.splits.test, rank)),  # type: ignore[arg-type]
            ]:
                mine, all_of_it = getattr(splits[rank], name), getattr(whole.splits, name)
                assert isinstance(mine, Scattered)
                assert len(mine) == len(all_of_it)
                assert len(mine.x) == len(rows)
                x, y = next(mine.batches([rows]))
                assert torch.equal(x, all_of_it.x[rows])
                assert torch.equal(y, all_of_it.y[rows])

    def test_what_is_elsewhere_is_a_sentence(self) -> None:
        part = Scattered(torch.tensor([1, 3]), torch.ones(2, 5), torch.arange(4))
        assert torch.equal(part.subset([3, 1]).y, torch.tensor([3, 1]))
        with pytest.raises(DataError, match="another rank holds"):
            next(part.batches([[0, 1]]))

    def test_a_gpu_is_told_that_it_has_not_all_of_it(self) -> None:
        part = Scattered(torch.tensor([0]), torch.ones(1, 5), torch.arange(4))
        assert find_capture_obstacle(Training(), part) == "the data are not whole on the device"

    def test_data_that_are_read_one_by_one_are_refused(self) -> None:
        from engine_models import Numbered

        task = prepare(
            Resolved.of(Experiment(model="mlp", data={"train": Numbered(20), "test": Numbered(5)}, threads=1))
        )
        with pytest.raises(DataError, match=r"the train part of .* is read sample by sample"):
            scatter(Mail(0, 1, {}), task)

    def test_a_part_that_is_scattered_is_still_a_part(self) -> None:
        part = Scattered(torch.tensor([0, 1]), torch.ones(2, 5), torch.arange(2))
        assert isinstance(part.to("cpu"), Scattered)
        assert part.fingerprint() == part.to("cpu").fingerprint()
        assert isinstance(part.subset([0]), Tensors)
