"""init_process_group("tenfold"): the same results as gloo, the same bits every time, and nobody waits for the dead."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from transport_contract import WorkerPool, receive

import tenfold
from tenfold.errors import TenfoldError, WorkerLost

pytestmark = pytest.mark.timeout(90)
GROUPS = count()
Operation = Callable[[Any, int, int], list[Tensor]]
LARGE = 1_100_003
"""Numbers that fill every slot of the shared memory more than once."""


@cache
def own_store() -> Any:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@contextmanager
def joined(meeting: tuple[int, int, int], rank: int, backend: str = "tenfold", seconds: float = 30) -> Iterator[None]:
    """Make the default group of the ranks that meet here."""
    port, number, size = meeting
    assert tenfold.backend
    store = dist.PrefixStore(str(number), dist.TCPStore("127.0.0.1", port, is_master=False))
    limit = timedelta(seconds=seconds)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def crew() -> Iterator[WorkerPool]:
    crew = WorkerPool()
    yield crew
    crew.close()


def meet(size: int) -> tuple[int, int, int]:
    return own_store().port, next(GROUPS), size


def numbers(rank: int, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype.is_floating_point:
        drawn = torch.float64 if dtype is torch.float64 else torch.float32
        return torch.randn(*shape, generator=generator, dtype=drawn).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 7, shape, generator=generator).to(dtype)


def all_reduce(group: Any, rank: int, size: int, kind: str, numel: int, dtype: torch.dtype) -> list[Tensor]:
    tensor = numbers(rank, numel, dtype=dtype)
    dist.all_reduce(tensor, getattr(dist.ReduceOp, kind), group)
    return [tensor]


def all_reduce_strided(group: Any, rank: int, size: int) -> list[Tensor]:
    tensor = numbers(rank, 30, 40).t()
    dist.all_reduce(tensor, group=group)
    return [tensor]


def all_reduce_coalesced(group: Any, rank: int, size: int) -> list[Tensor]:
    tensors = [numbers(rank, 5), numbers(rank, 7, 3), numbers(rank, 0)]
    with dist._coalescing_manager(group):
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    return tensors


def broadcast(group: Any, rank: int, size: int, root: int, numel: int, dtype: torch.dtype) -> list[Tensor]:
    tensor = numbers(rank, numel, dtype=dtype)
    dist.broadcast(tensor, root, group)
    return [tensor]


def reduce(group: Any, rank: int, size: int) -> list[Tensor]:
    tensor = numbers(rank, 100_000)
    dist.reduce(tensor, size - 1, group=group)
    return [tensor] if rank == size - 1 else []


def all_gather(group: Any, rank: int, size: int, numel: int) -> list[Tensor]:
    outs = [torch.zeros(numel) for _ in range(size)]
    dist.all_gather(outs, numbers(rank, numel), group)
    return outs


def all_gather_strided(group: Any, rank: int, size: int) -> list[Tensor]:
    outs = [torch.zeros(6, 4).t() for _ in range(size)]
    dist.all_gather(outs, numbers(rank, 8, 6)[::2], group)
    return outs


def all_gather_into_tensor(group: Any, rank: int, size: int) -> list[Tensor]:
    out = torch.zeros(size * 3, 50)
    dist.all_gather_into_tensor(out, numbers(rank, 3, 50), group)
    return [out]


def gather(group: Any, rank: int, size: int) -> list[Tensor]:
    outs = [torch.zeros(17) for _ in range(size)] if rank == 1 else None
    dist.gather(numbers(rank, 17), outs, 1, group)
    return outs or []


def scatter(group: Any, rank: int, size: int) -> list[Tensor]:
    out = torch.zeros(400_000)
    parts = [numbers(other, 400_000, seed=1) for other in range(size)] if rank == 1 else None
    dist.scatter(out, parts, 1, group)
    return [out]


def reduce_scatter(group: Any, rank: int, size: int, numel: int) -> list[Tensor]:
    out = torch.zeros(numel)
    dist.reduce_scatter(out, [numbers(rank, numel, seed=other) for other in range(size)], group=group)
    return [out]


def reduce_scatter_tensor(group: Any, rank: int, size: int) -> list[Tensor]:
    out = torch.zeros(2, 5)
    dist.reduce_scatter_tensor(out, numbers(rank, 2 * size, 5), group=group)
    return [out]


def all_to_all_single(group: Any, rank: int, size: int) -> list[Tensor]:
    """Rank r sends r + 1 + s rows to rank s."""
    sent, received = [rank + 1 + other for other in range(size)], [other + 1 + rank for other in range(size)]
    out = torch.zeros(sum(received), 1000)
    dist.all_to_all_single(out, numbers(rank, sum(sent), 1000), received, sent, group=group)
    return [out]


def objects(group: Any, rank: int, size: int) -> list[Tensor]:
    everything: list[Any] = [None] * size
    dist.all_gather_object(everything, {"rank": rank, "text": "x" * 1000 * rank}, group)
    shared = [f"from {rank}", rank]
    dist.broadcast_object_list(shared, 1, group)
    return [torch.tensor([len(item["text"]) for item in everything]), torch.tensor(shared[1])]


def messages(group: Any, rank: int, size: int) -> list[Tensor]:
    """Send around a ring, with tags in another order than they are received, and more than a channel holds."""
    to, source = (rank + 1) % size, (rank - 1) % size
    sends = [dist.isend(numbers(rank, 600_000 // tag, seed=tag), to, group, tag) for tag in (1, 2, 3)]
    received = []
    for tag in (3, 1, 2):
        received.append(torch.zeros(600_000 // tag))
        assert dist.recv(received[-1], source, group, tag) == source
    for send in sends:
        send.wait()
    batch = [dist.P2POp(dist.isend, numbers(rank, 9), to, group), dist.P2POp(dist.irecv, torch.zeros(9), source, group)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    return [*received, batch[1].tensor]


def any_source(group: Any, rank: int, size: int) -> list[Tensor]:
    if rank:
        dist.send(numbers(rank, 4), 0, group)
        return []
    received = {}
    for _ in range(size - 1):
        tensor = torch.zeros(4)
        received[dist.recv(tensor, group=group)] = tensor
    return [received[other] for other in range(1, size)]


def asynchronous(group: Any, rank: int, size: int) -> list[Tensor]:
    """Begin several operations, and send a message meanwhile: who waits for one need not wait for another."""
    tensors = [numbers(rank, 1000 * (index + 1)) for index in range(5)]
    first = dist.all_reduce(tensors[0], group=group, async_op=True)
    if rank == 0:
        dist.send(tensors[1], 1, group)
    elif rank == 1:
        dist.recv(torch.zeros(2000), 0, group)
        time.sleep(0.05)
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors[1:]]
    for work in (works[-1], *works, first):
        work.wait()
        assert work.is_completed()
    done = dist.broadcast(tensors[0], 0, group, async_op=True).get_future().then(lambda future: future.value()[0].sum())
    return [*tensors, done.wait()]


OPERATIONS: list[Operation] = [
    *(partial(all_reduce, kind="SUM", numel=n, dtype=torch.float32) for n in (0, 1, 1000, 99_999, LARGE)),
    *(partial(all_reduce, kind=kind, numel=20_000, dtype=torch.float64) for kind in ("PRODUCT", "MIN", "MAX")),
    *(
        partial(all_reduce, kind=kind, numel=50_001, dtype=torch.int64)
        for kind in ("SUM", "PRODUCT", "BAND", "BOR", "BXOR", "MIN")
    ),
    *(
        partial(all_reduce, kind="SUM", numel=70_000, dtype=dtype)
        for dtype in (torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int32)
    ),
    all_reduce_strided,
    all_reduce_coalesced,
    partial(broadcast, root=0, numel=10, dtype=torch.bool),
    partial(broadcast, root=1, numel=LARGE, dtype=torch.float32),
    reduce,
    partial(all_gather, numel=5),
    partial(all_gather, numel=LARGE),
    all_gather_strided,
    all_gather_into_tensor,
    gather,
    scatter,
    partial(reduce_scatter, numel=11),
    partial(reduce_scatter, numel=700_001),
    reduce_scatter_tensor,
    all_to_all_single,
    objects,
    messages,
    any_source,
    asynchronous,
]


def compare_with_gloo(meeting: tuple[int, int, int], rank: int) -> list[str]:
    """Return what gloo and tenfold do not agree on."""
    different, size = [], meeting[2]
    with joined(meeting, rank, "gloo"):
        groups = {name: dist.new_group(backend=name) for name in ("gloo", "tenfold")}
        for operation in OPERATIONS:
            results = {name: operation(group, rank, size) for name, group in groups.items()}
            for theirs, ours in zip(*results.values(), strict=True):
                short = {"rtol": 0.02, "atol": 0.05} if ours.is_floating_point() and ours.itemsize < 4 else {}
                try:
                    torch.testing.assert_close(ours, theirs, equal_nan=True, **short)
                except AssertionError as error:
                    different.append(f"{operation}: {error}")
    return different


@pytest.mark.parametrize("size", [2, 3])
def test_every_operation_gives_what_gloo_gives(crew: WorkerPool, size: int) -> None:
    assert crew.run(size, compare_with_gloo, meet(size)) == [[]] * size


def play_at_random(meeting: tuple[int, int, int], rank: int) -> list[str]:
    """Begin operations of all kinds and sizes at different moments, and end them in another order."""
    size, plan, own = meeting[2], random.Random(meeting[1]), random.Random(rank)
    wrong: list[str] = []
    with joined(meeting, rank):
        begun: list[Any] = []
        for number in range(150):
            kind = plan.choice(["all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier", "message"])
            numel, root, later = plan.choice([1, 30, 3000, 40_000, 300_000]), plan.randrange(size), plan.random() < 0.5
            inputs = [torch.full((numel,), float(number + other)) for other in range(size)]
            mine, expected = inputs[rank].clone(), sum(inputs, torch.zeros(numel))
            match kind:
                case "all_reduce":
                    work, out = dist.all_reduce(mine, async_op=True), mine
                case "broadcast":
                    work, out, expected = dist.broadcast(mine, root, async_op=True), mine, inputs[root]
                case "all_gather":
                    out, expected = torch.empty(size * numel), torch.cat(inputs)
                    work = dist.all_gather_into_tensor(out, mine, async_op=True)
                case "reduce_scatter":
                    out = torch.empty(numel)
                    work = dist.reduce_scatter_tensor(out, mine.repeat(size), async_op=True)
                case "barrier":
                    work, out, expected = dist.barrier(async_op=True), mine, mine
                case _:
                    send = dist.isend(mine, (rank + 1) % size, tag=number)
                    out, expected = torch.empty(numel), inputs[rank - 1]
                    work = dist.irecv(out, (rank - 1) % size, tag=number)
                    begun.append((f"{number} send", send, mine, inputs[rank]))
            begun.append((f"{number} {kind} {numel}", work, out, expected))
            if own.random() < 0.1:
                time.sleep(own.random() / 100)
            if not later:
                own.shuffle(begun)
                for name, work, out, expected in begun:
                    work.wait()
                    if not torch.equal(out, expected):
                        wrong.append(name)
                begun.clear()
        for _, work, *_ in begun:
            work.wait()
    return wrong


@pytest.mark.parametrize("size", [2, 4])
def test_any_sequence_of_operations_gives_the_right_result(crew: WorkerPool, size: int) -> None:
    assert crew.run(size, play_at_random, meet(size)) == [[]] * size


def sums(meeting: tuple[int, int, int], rank: int) -> list[bool]:
    with joined(meeting, rank):
        same = []
        for numel in (10, 40_000, LARGE):
            tensor = numbers(rank, numel)
            dist.all_reduce(tensor)
            expected = numbers(0, numel)
            for other in range(1, meeting[2]):
                expected += numbers(other, numel)
            same.append(torch.equal(tensor, expected))
        strided = numbers(rank, 30, 40)[:, ::3]  # of which gloo takes the elements between as well
        dist.all_reduce(strided)
        same.append(torch.allclose(strided, sum(numbers(other, 30, 40)[:, ::3] for other in range(meeting[2]))))
        uneven = [torch.zeros(other + 1) for other in range(meeting[2])]
        dist.all_gather(uneven, torch.full((rank + 1,), float(rank)))
        same += [bool((part == other).all()) for other, part in enumerate(uneven)]
        mean = torch.tensor([1.0 + rank])
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        return [*same, mean.item() == (meeting[2] + 1) / 2]


def test_sums_are_made_in_rank_order(crew: WorkerPool) -> None:
    for same in crew.run(4, sums, meet(4)):
        assert same == [True] * 9


def train(kind: str, group: Any, rank: int) -> Tensor:
    from torch.distributed.fsdp import fully_shard  # here, as every process of tests would take a second for both
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(20, 300), nn.BatchNorm1d(300), nn.Tanh(), nn.Linear(300, 1000))
    if kind == "fsdp":
        fully_shard(model, mesh=dist.device_mesh.DeviceMesh.from_group(group, "cpu"))
    else:
        model = DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.5)
    if kind == "zero":
        optimizer: Any = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, group, lr=0.1, momentum=0.9)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        (model(numbers(rank, 8, 20, seed=step)) ** 2).mean().backward()
        optimizer.step()
    whole = [getattr(parameter, "full_tensor", lambda own=parameter: own)() for parameter in model.parameters()]
    return torch.cat([parameter.detach().reshape(-1) for parameter in whole])


def train_on_both(meeting: tuple[int, int, int], rank: int) -> list[Any]:
    with joined(meeting, rank, "gloo"):
        groups = [dist.new_group(backend=name) for name in ("gloo", "tenfold", "tenfold")]
        found = []
        for kind in ("ddp", "zero", "fsdp"):
            gloo, first, second = (train(kind, group, rank) for group in groups)
            torch.testing.assert_close(first, gloo)
            found.append((kind, torch.equal(first, second), first.double().sum().item()))
        return found


def test_ddp_zero_and_fsdp_train_as_on_gloo_and_repeat_bit_for_bit(crew: WorkerPool) -> None:
    first, *others = crew.run(3, train_on_both, meet(3))
    assert [same for _, same, _ in first] == [True] * 3
    assert others == [first] * 2


def use_subgroups(meeting: tuple[int, int, int], rank: int) -> list[Any]:
    with joined(meeting, rank):
        pair, pairs = dist.new_subgroups(2)
        assert len(pairs) == 2
        odd = dist.new_group([1, 3])
        tensor = torch.tensor([rank])
        dist.all_reduce(tensor, group=pair)
        found = [tensor.item()]
        if rank % 2:
            dist.all_reduce(tensor, group=odd)
            found += [tensor.item(), dist.get_backend(odd)]
        dist.monitored_barrier(timeout=timedelta(seconds=20))
        dist.destroy_process_group(pair)
        dist.barrier()
        return found


def test_subgroups(crew: WorkerPool) -> None:
    found = crew.run(4, use_subgroups, meet(4))
    assert found == [[1], [1, 6, "tenfold"], [5], [5, 6, "tenfold"]]


def mix_devices(meeting: tuple[int, int, int], rank: int) -> list[Any]:
    """Tensors without memory, which tenfold refuses, stand for those of a GPU."""
    with joined(meeting, rank, "cpu:tenfold,meta:gloo"):
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        group = dist.new_group([0, 1])
        dist.broadcast(tensor, 0, group)
        dist.barrier()
        dist.all_reduce(torch.ones(3, device="meta"), group=group)
        backends = [group._get_backend(torch.device(device)).name() for device in ("cpu", "meta")]
        return [*tensor.tolist(), *backends]


def test_tensors_of_other_devices_go_to_other_backends(crew: WorkerPool) -> None:
    assert crew.run(2, mix_devices, meet(2)) == [[2.0, 2.0, 2.0, "tenfold", "gloo"]] * 2


def call_differently(meeting: tuple[int, int, int], rank: int) -> list[str]:
    said = []
    with joined(meeting, rank):
        wrong: list[Callable[[], Any]] = [
            lambda: dist.all_reduce(torch.zeros(3 + rank)),
            lambda: dist.all_reduce(torch.zeros(3)) if rank else dist.broadcast(torch.zeros(3), 0),
            lambda: dist.all_reduce(torch.zeros(3, device="meta")),
            lambda: dist.all_reduce(torch.zeros(3), dist.ReduceOp.BXOR),
            lambda: dist.all_gather_into_tensor(torch.zeros(3), torch.zeros(3)),
            lambda: dist.all_reduce(torch.zeros(3, dtype=torch.bool), dist.ReduceOp.AVG),
            lambda: dist.all_reduce(torch.zeros(3, 1).expand(3, 4)),
            lambda: dist.all_reduce(torch.eye(3).to_sparse(), dist.ReduceOp.MAX),
            lambda: dist.all_reduce(torch.eye(3, dtype=torch.float16).to_sparse()),
            lambda: dist.reduce_scatter_tensor(torch.zeros(3), torch.zeros(3 * meeting[2], dtype=torch.float64)),
        ]
        for call in wrong:
            with pytest.raises(TenfoldError) as caught:
                call()
            said.append(str(caught.value))
        dist.barrier()
    return said


def test_wrong_calls_get_a_sentence_on_every_rank_and_the_group_goes_on(crew: WorkerPool) -> None:
    for said in crew.run(2, call_differently, meet(2)):
        words = ["rank 1 called all_reduce with 16 bytes", "broadcast", "cpu:tenfold", "BXOR", "output"]
        words += ["bool", "expand", "MAX", "float16", "float64"]
        assert all(word in sentence for word, sentence in zip(words, said, strict=True)), said


def wait_for_one(meeting: tuple[int, int, int], rank: int, how: str) -> tuple[str, float]:
    """Let the last rank end, stop, leave or sleep, and return what the others say, and after how many seconds."""
    began = time.perf_counter()
    try:
        with joined(meeting, rank, seconds=1 if how == "sleep" else 60):
            dist.barrier()
            began = time.perf_counter()
            if rank == meeting[2] - 1:
                match how:
                    case "sleep":
                        time.sleep(1.7)
                    case "leave":
                        return "", 0.0
                    case _:
                        os.kill(os.getpid(), getattr(signal, how))
            work = dist.all_reduce(torch.zeros(100_000), async_op=True)
            if rank:
                work.wait()
            else:
                torch.futures.collect_all([work.get_future()]).wait()  # in C++, as DDP does
    except RuntimeError as error:
        return str(error), time.perf_counter() - began
    raise AssertionError("nothing happened")


@pytest.mark.parametrize(
    ("how", "word", "within"), [("SIGKILL", "died", 4), ("SIGSTOP", "stopped", 10), ("leave", "left", 4)]
)
def test_a_rank_that_dies_stops_or_leaves_is_named(crew: WorkerPool, how: str, word: str, within: float) -> None:
    members = crew.start(3, wait_for_one, meet(3), how)
    pid = members[2][0].pid
    for _, connection in members[:2]:
        said, seconds = receive(connection)
        assert "rank 2" in said
        assert word in said
        assert str(pid) in said
        assert seconds < within
    if how == "leave":
        receive(members[2][1])
    else:
        members[2][0].join(10)
        assert not members[2][0].is_alive()


def test_a_rank_that_is_late_is_named(crew: WorkerPool) -> None:
    answers = [receive(connection) for _, connection in crew.start(2, wait_for_one, meet(2), "sleep")]
    assert "rank 1" in answers[0][0]
    assert 0.9 < answers[0][1] < 2.5


def lose_a_sender(meeting: tuple[int, int, int], rank: int) -> str:
    with joined(meeting, rank):
        if rank == 1:
            dist.send(torch.ones(3), 0)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.5)
        tensor = torch.zeros(3)
        dist.recv(tensor, 1)
        assert tensor.sum() == 3
        with pytest.raises(WorkerLost) as caught:
            dist.recv(tensor, 1)
        return f"{caught.value.rank} {caught.value}"


def fail_or_answer(number: int, rank: int) -> int:
    if rank == 0:
        raise ValueError("rank 0 fails")
    return number


def test_a_scenario_that_fails_leaves_no_answer_for_the_next(crew: WorkerPool) -> None:
    for number in range(2):
        with pytest.raises(ValueError, match="rank 0"):
            crew.run(3, fail_or_answer, number)
    assert [receive(connection) for _, connection in crew.start(3, fail_or_answer, 2)[1:]] == [2, 2]


def test_a_message_of_the_dead_arrives_and_the_next_does_not(crew: WorkerPool) -> None:
    members = crew.start(2, lose_a_sender, meet(2))
    assert receive(members[0][1]).startswith("1 recv: rank 1 ")


def open_as_another_user(meeting: tuple[int, int, int], rank: int, folder: str) -> str:
    with joined(meeting, rank):
        own = next(path for path in Path("/proc/self/fd").iterdir() if "memfd:tenfold" in str(path.readlink()))
        Path(folder, f"rank{rank}").write_text(f"/proc/{os.getpid()}/fd/{own.name}")
        dist.barrier()
        other = Path(folder, f"rank{1 - rank}").read_text()
        assert os.access(other, os.W_OK)
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setuid(65534)
            os._exit(os.access(other, os.R_OK) or os.access(other, os.W_OK))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        dist.barrier()
        return f"{code} {[path.name for path in Path('/dev/shm').iterdir() if 'tenfold' in path.name]}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_other_users_cannot_open_the_memory(crew: WorkerPool, tmp_path: Path) -> None:
    assert crew.run(2, open_as_another_user, meet(2), str(tmp_path)) == ["0 []"] * 2
