"""Laws 2 and 6: what real rounds do to the replicas, their batch statistics and their optimizers."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine_models import LAWFUL, SMALL, same, train
from hypothesis import given
from hypothesis import strategies as st
from threaded import State, Threads, make_task
from torch import Tensor, nn

from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment, Parallel
from tenfold.mixing import STRATEGIES
from tenfold.training.muon import Muon, as_matrices
from tenfold.workers import rounds as shared_orthogonalization
from tenfold.workers.rounds import (
    ReplicaRounds,
    assign_matrices,
    large_stacks,
    largest_share,
    parallel_pays,
    stacks_worth_sharing,
)
from tenfold.workers.task import Mixing, make_network

SYNCHRONOUS = [name for name in STRATEGIES if not STRATEGIES[name].asynchronous]


UNEQUAL: dict[str, Any] = {"shards": "fractions", "fractions": [0.6, 0.3, 0.1]}


FEW: dict[str, Any] = {"limit": 60, "epochs": 1, "batch_size": 6}


def weighted(states: list[State], name: str, weights: list[int]) -> Tensor:
    total = sum(state[name].double() * weight for state, weight in zip(states, weights, strict=True))
    return total / sum(weights)


def spread(states: list[State], name: str) -> float:
    return max(float((state[name] - states[0][name]).abs().max()) for state in states)


def is_variance(name: str) -> bool:
    return name.endswith("running_var")


def is_mixed(name: str) -> bool:
    return not name.endswith(("running_var", "num_batches_tracked"))


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("strategy", SYNCHRONOUS)
def test_the_mean_is_kept(strategy: str, workers: int) -> None:
    threads = Threads(make_task(**LAWFUL | FEW, strategy=strategy, workers=workers), watch=True).train()
    assert len(threads.rounds()) == threads.task.steps_per_epoch
    for before, after in threads.rounds():
        for name in filter(is_mixed, before[0]):
            torch.testing.assert_close(
                weighted(after, name, [1] * workers), weighted(before, name, [1] * workers), rtol=1e-5, atol=1e-6
            )


@pytest.mark.parametrize("strategy", SYNCHRONOUS)
def test_the_mean_is_kept_by_samples_where_shards_are_unequal(strategy: str) -> None:
    threads = Threads(make_task(**LAWFUL | FEW | UNEQUAL, strategy=strategy, workers=3), watch=True).train()
    samples = [len(shard) for shard in threads.task.shards]
    assert samples == [36, 18, 6]
    for before, after in threads.rounds():
        for name in filter(is_mixed, before[0]):
            torch.testing.assert_close(
                weighted(after, name, samples), weighted(before, name, samples), rtol=1e-5, atol=1e-6
            )


@pytest.mark.parametrize("shards", [{}, UNEQUAL], ids=["equal", "unequal"])
def test_variances_are_those_of_all_samples(shards: dict[str, Any]) -> None:
    """var = avg(var_i) + var(mean_i), weighted by samples."""
    threads = Threads(make_task(**LAWFUL | FEW | shards, workers=3), watch=True).train()
    samples = [len(shard) for shard in threads.task.shards]
    checked = 0
    for before, after in threads.rounds():
        for name in filter(is_variance, before[0]):
            means = [{"m": state[name.replace("_var", "_mean")], "v": state[name]} for state in before]
            mean = weighted(means, "m", samples)
            squares = [{"s": (state["m"].double() - mean) ** 2} for state in means]
            expected = weighted(means, "v", samples) + weighted(squares, "s", samples)
            for state in after:
                torch.testing.assert_close(state[name].double(), expected, rtol=1e-4, atol=1e-6)
            checked += 1
    assert checked


@pytest.mark.parametrize("strategy", SYNCHRONOUS)
def test_the_result_is_the_mean_of_all_replicas(strategy: str) -> None:
    threads = Threads(make_task(**SMALL | FEW, strategy=strategy, workers=3), watch=True).train()
    _, after = threads.rounds()[-1]
    for name in after[0]:
        expected = weighted(after, name, [len(shard) for shard in threads.task.shards])
        torch.testing.assert_close(threads.weights[name].double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("strategy", ["ring", "hopping-ring", "gossip", "none"])
def test_evaluating_the_mean_leaves_replicas_apart(strategy: str) -> None:
    """The evaluation of an epoch is of the mean; the replicas continue from where they were."""
    threads = Threads(make_task(**SMALL | FEW | {"epochs": 2}, strategy=strategy, workers=3), watch=True).train()
    steps = threads.task.steps_per_epoch
    (_, last), (first, _) = threads.rounds()[steps - 1], threads.rounds()[steps]
    name = "1.weight"
    moved = [float((new[name] - old[name]).abs().max()) for new, old in zip(first, last, strict=True)]
    assert 0 < max(moved) < 0.1  # one step further, not back at the mean
    assert spread(first, name) > 0


def test_rounds_come_every_so_many_steps() -> None:
    threads = Threads(make_task(**SMALL | FEW | {"sync_every": 3}, workers=2, local_after=1), watch=True).train()
    alike = [spread(after, "1.weight") == 0 for _, after in threads.rounds()]
    assert alike == [True, False, False, True, False]


@pytest.mark.parametrize(("workers", "batch_size"), [(2, 10), (3, 4)])
def test_once_an_epoch_whatever_the_steps_of_an_epoch_are(workers: int, batch_size: int) -> None:
    fields = SMALL | FEW | {"sync_every": "epoch", "epochs": 2, "batch_size": batch_size}
    threads = Threads(make_task(**fields, workers=workers), watch=True).train()
    steps = threads.task.steps_per_epoch
    alike = [spread(after, "1.weight") == 0 for _, after in threads.rounds()]
    assert alike == [*[False] * (steps - 1), True] * 2
    assert threads.task.experiment.flat()["sync_every"] == "epoch"


@pytest.mark.parametrize("shards", [{}, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("outer", ["bmuf", "slowmo", "diloco"])
def test_after_an_outer_step_all_replicas_are_alike(outer: str, shards: dict[str, Any]) -> None:
    fields = SMALL | FEW | shards | {"schedule": "cosine", "lr": 0.01, "sync_every": 2}
    threads = Threads(make_task(**fields, outer=outer, workers=3), watch=True).train()
    last = max(step for step in range(len(threads.rounds())) if step % 2)
    _, after = threads.rounds()[last]
    assert all(spread(after, name) == 0 for name in after[0])


@pytest.mark.parametrize("compression", ["bf16", "int8", "topk", "1bit"])
@pytest.mark.parametrize("average", ["weights", "gradients"])
def test_after_a_compressed_round_all_replicas_are_alike(compression: str, average: str) -> None:
    task = make_task(**SMALL | FEW, compression=compression, average=average, workers=3)
    threads = Threads(task, watch=True).train()
    _, after = threads.rounds()[-1]
    assert all(spread(after, name) == 0 for name in after[0])
    assert 0 < threads.coordinator.result["bytes_moved"] < uncompressed_bytes(average)


def uncompressed_bytes(average: str) -> int:
    return int(Threads(make_task(**SMALL | FEW, average=average, workers=3)).train().coordinator.result["bytes_moved"])


@pytest.mark.parametrize("fields", [{"outer": "bmuf"}, {"compression": "topk"}])
def test_what_was_saved_goes_to_the_device_of_the_replica(fields: dict[str, Any]) -> None:
    """The device without memory stands for a GPU."""
    links: Any = SimpleNamespace(weights=SimpleNamespace(size=2, rank=0))
    here, there = (
        ReplicaRounds(
            Mixing.of(Parallel(workers=2, **fields)),
            SimpleNamespace(
                flat=SimpleNamespace(
                    vector=torch.ones(4, device=device), parameters=4, parameter_shapes=[(4,)], frozen=[]
                )
            ),  # type: ignore[arg-type]
            links,
            [1.0, 1.0],
        )
        for device in ("cpu", "meta")
    )
    here.compressors[0].error = torch.ones(4)
    there.load(here.state())
    found = [there.reference, there.compressors[0].error, *there.outer_state.values()]
    assert {tensor.device.type for tensor in found if tensor is not None} == {"meta"}


def test_a_reference_is_kept_only_where_weights_are_compressed() -> None:
    links: Any = SimpleNamespace(weights=SimpleNamespace(size=2, rank=0))
    replica: Any = SimpleNamespace(
        flat=SimpleNamespace(vector=torch.ones(16), parameters=16, parameter_shapes=[(16,)], frozen=[]),
        trainable_parameters=[torch.ones(3)],
    )
    kept, gradients, plain = (
        ReplicaRounds(Mixing.of(Parallel(workers=2, **fields)), replica, links, [1.0, 1.0])
        for fields in ({"compression": "int8"}, {"compression": "int8", "average": "gradients"}, {})
    )
    assert kept.reference is not None
    gradients.load(kept.state() | {"rounds": 7})
    assert (gradients.count, gradients.reference, plain.reference) == (7, None, None)


def test_plain_gradients_are_counted_as_they_are() -> None:
    threads = Threads(make_task(**SMALL | FEW, average="gradients", workers=2)).train()
    numbers = sum(parameter.numel() for parameter in threads.workers[0].replica.trainable_parameters)
    rounds = threads.task.steps_per_epoch
    assert threads.coordinator.result["bytes_moved"] == 4 * numbers * rounds


def test_the_learning_rate_follows_the_run_and_not_the_shard() -> None:
    """A replica that has no batch left when others have is still at the same place of the schedule."""
    threads = Threads(make_task(**SMALL | FEW | UNEQUAL | {"schedule": "cosine"}, workers=3)).train()
    rates = [worker.replica.lr for worker in threads.workers]
    assert len(set(rates)) == 1
    assert {worker.replica.steps for worker in threads.workers} == {threads.task.steps_per_epoch}


class MakesStateAtFirst(torch.optim.Optimizer):
    """As Adagrad of torch 2.10 to 2.12 does."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {"sum": torch.full_like(parameter, 0.5)}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                total = self.state[parameter]["sum"].add_(parameter.grad**2)
                parameter.sub_(group["lr"] * parameter.grad / total.sqrt())


class Heads(nn.Module):
    """A head for each of two domains; a sample's first feature says which it belongs to. Nobody uses a third head."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(3, 4)
        self.first, self.second, self.unused = nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.trunk(x)
        parts = [
            head(hidden[x[:, 0] == sign])
            for sign, head in ((-1, self.first), (1, self.second))
            if bool((x[:, 0] == sign).any())
        ]
        return torch.cat(parts)


def two_domains(samples: int = 40) -> dict[str, tuple[Tensor, Tensor]]:
    """The first half of the samples belongs to one domain, the second half to the other."""
    x = torch.randn(samples, 3, generator=torch.Generator().manual_seed(3))
    x[:, 0] = torch.where(torch.arange(samples) < samples // 2, -1, 1)
    y = torch.arange(samples) % 2
    return {"train": (x, y), "test": (x, y)}


DOMAINS: dict[str, Any] = {"model": Heads, "data": two_domains(), "shards": "contiguous", "workers": 2, "epochs": 1}


DOMAINS |= {"schedule": "constant", "lr_scaling": "none", "batch_size": 10}


class Whimsical(torch.optim.SGD):
    """Keeps more for layers that it has changed."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None and bool(parameter.grad.any()):
                self.state[parameter]["changed"] = torch.ones_like(parameter)


class Remembering(torch.optim.SGD):
    """Keeps the gradients of the step before by reference, which plain torch allows."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            assert state.get("same") is None or torch.equal(state["before"], state["same"])
            state["before"], state["same"] = parameter.grad, parameter.grad.clone()


def test_a_users_optimizer_may_keep_averaged_gradients() -> None:
    fields = SMALL | {"limit": 60, "epochs": 1, "batch_size": 10, "average": "gradients", "optimizer": Remembering}
    threads = Threads(make_task(**fields, lr=0.1, workers=2)).train()
    assert all(worker.replica.optimizer.state for worker in threads.workers)


class TestUnlikeLayers:
    """Workers that train different layers."""

    def states(self, optimizer_state: str, **fields: Any) -> list[dict[str, dict[str, Tensor]]]:
        threads = Threads(make_task(**DOMAINS | {"optimizer_state": optimizer_state} | fields)).train()
        return [
            {
                name: {
                    key: value
                    for key, value in worker.replica.optimizer.state.get(parameter, {}).items()
                    if isinstance(value, Tensor) and value.ndim
                }
                for name, parameter in worker.replica.network.named_parameters()
            }
            for worker in threads.workers
        ]

    @pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "rmsprop", "muon"])
    def test_momenta_are_averaged_layer_by_layer(self, optimizer: str) -> None:
        """A worker that has not trained a layer takes part with zeros."""
        fields: dict[str, Any] = {"optimizer": optimizer, "sync_every": 2, "weight_decay": 0.01}
        alone, together = self.states("local", **fields), self.states("average", **fields)
        assert not alone[0]["second.weight"]
        for name in alone[0]:
            for key in {*alone[0][name], *alone[1][name]}:
                mean = sum(item[name].get(key, torch.zeros(1)) for item in alone) / 2
                for item in together:
                    torch.testing.assert_close(item[name][key], mean, rtol=1e-5, atol=1e-7)

    def test_states_that_differ_are_an_error(self) -> None:
        with pytest.raises(ExperimentError, match="local"):
            self.states("average", optimizer=Whimsical, optimizer_options={"momentum": 0.9}, lr=0.1, sync_every=2)

    def test_a_layer_that_nobody_uses_is_left_alone(self) -> None:
        """One worker would not decay its weights either."""
        fields = DOMAINS | {"optimizer": "adamw", "weight_decay": 0.1, "average": "gradients", "sync_every": 1}
        threads = Threads(make_task(**fields)).train()
        before = make_network(threads.task).state_dict()
        moved = {name for name, tensor in threads.weights.items() if not torch.equal(tensor, before[name])}
        assert moved == {name for name in before if not name.startswith("unused")}
        first, second = (worker.replica.flat.vector for worker in threads.workers)
        assert torch.equal(first, second)


class TestOptimizerState:
    def momenta(self, optimizer_state: str, **fields: Any) -> list[list[Tensor]]:
        """Train one round of two unlike replicas; return their momenta."""
        fields = SMALL | {"limit": 40, "epochs": 1, "batch_size": 10, "sync_every": 2, "shards": "contiguous"} | fields
        threads = Threads(make_task(**fields, optimizer_state=optimizer_state, workers=2)).train()
        return [
            [
                tensor
                for parameter in worker.replica.trainable_parameters
                for tensor in worker.replica.optimizer.state.get(parameter, {}).values()
                if isinstance(tensor, Tensor) and tensor.ndim
            ]
            for worker in threads.workers
        ]

    @pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad", "rmsprop", "muon"])
    def test_local_momenta_stay_apart_and_average_is_their_mean(self, optimizer: str) -> None:
        first, second = self.momenta("local", optimizer=optimizer)
        assert first
        assert any(not torch.equal(item, other) for item, other in zip(first, second, strict=True))
        averaged, other_averaged = self.momenta("average", optimizer=optimizer)
        for mean, same_mean, item, other in zip(averaged, other_averaged, first, second, strict=True):
            assert torch.equal(mean, same_mean)
            torch.testing.assert_close(mean, (item + other) / 2, rtol=1e-5, atol=1e-7)

    @pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "adagrad", "rmsprop", "lbfgs", "muon"])
    def test_reset_forgets_and_goes_on(self, optimizer: str) -> None:
        first, second = self.momenta("reset", optimizer=optimizer, epochs=2)
        assert all(not tensor.any() for tensor in (*first, *second))

    def test_reset_keeps_the_state_that_an_optimizer_makes_at_first(self) -> None:
        first, second = self.momenta("reset", optimizer=MakesStateAtFirst, epochs=2)
        assert all(bool((tensor == 0.5).all()) for tensor in (*first, *second))

    def test_reset_momentum_is_no_momentum(self) -> None:
        """Reset at every step, momentum never builds up: the same weights as without."""
        fields = SMALL | FEW | {"workers": 2}
        reset = Threads(make_task(**fields, optimizer_state="reset", momentum=0.9)).train().weights
        without = Threads(make_task(**fields, momentum=0.0)).train().weights
        with_momentum = Threads(make_task(**fields, momentum=0.9)).train().weights
        for name in without:
            torch.testing.assert_close(reset[name], without[name], rtol=1e-6, atol=1e-7)
        assert not torch.equal(with_momentum["1.weight"], without["1.weight"])


def test_the_loss_of_an_epoch_counts_every_sample_once() -> None:
    from tenfold.workers.coordinator import EpochTrained

    threads = Threads(make_task(**SMALL | UNEQUAL, workers=3)).train()
    for messages in threads.heard:
        if isinstance(messages[0], EpochTrained):
            seen = [message.samples for message in messages if isinstance(message, EpochTrained)]
            assert seen == [len(shard) for shard in threads.task.shards]


def test_patience_gives_the_best_epoch_to_all() -> None:
    fields = SMALL | {"epochs": 60, "limit": 60, "lr": 0.1, "patience": 2}
    threads = Threads(make_task(**fields, workers=3, strategy="ring")).train()
    result = threads.coordinator.result
    assert result["stopped_early"]
    assert result["epochs"] == result["best_epoch"] + 2
    assert threads.coordinator.best_loss == pytest.approx(result["metrics"]["loss"], rel=1e-5)
    first, *others = [worker.replica.flat.vector for worker in threads.workers]
    assert all(torch.equal(first, other) for other in others)


def test_the_experiment_of_these_tests_is_what_it_claims() -> None:
    assert Experiment(**LAWFUL).model.batchnorm


@pytest.mark.parametrize(("fields", "charged"), [({"strategy": "none"}, True), ({"sync_every": 1}, False)])
def test_the_final_average_is_communication_where_replicas_differ(fields: dict[str, Any], charged: bool) -> None:
    threads = Threads(make_task(**SMALL | FEW | fields, workers=2))
    laps: list[str] = []
    keeper = threads.workers[0].time
    lap = keeper.lap
    keeper.lap = lambda kind, **times: (laps.append(kind), lap(kind, **times))[1]  # type: ignore[assignment,func-returns-value]
    threads.train()
    assert ("communicate" in laps[-2:]) == charged


FIELDS: dict[str, Any] = {"data": "digits", "limit": 120, "epochs": 1, "batch_size": 20, "workers": 2}


GRADIENTS = {"optimizer": "muon", "average": "gradients", "weight_decay": 0.01, "clip": 1.0}


WIDE = FIELDS | GRADIENTS | {"model": "mlp", "hidden": [512, 512]}


NARROW = FIELDS | GRADIENTS | {"model": "lenet5", "data": "digits", "ema": 0.9}


sizes = st.integers(2, 150)


shapes = st.lists(st.tuples(sizes, sizes), min_size=1, max_size=5)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Any:
    def choose(divided: bool) -> None:
        monkeypatch.setattr(
            shared_orthogonalization, "stacks_worth_sharing", lambda optimizer, _: divided and large_stacks(optimizer)
        )

    return choose


def divides(**fields: Any) -> bool:
    threads = Threads(make_task(**fields))
    threads._shared.close()
    return getattr(threads.workers[0].trainer, "shared_orthogonalization", None) is not None


@given(shapes, st.integers(1, 7), st.sampled_from([8, 64]), st.integers(0, 99))
def test_parts_of_a_step_have_the_bits_of_the_whole(
    shapes: list[tuple[int, int]], workers: int, block: int, seed: int
) -> None:
    torch.manual_seed(seed)
    start, gradients = [torch.randn(shape) for shape in shapes], [torch.randn(shape) for shape in shapes]

    def stepped(rank: int | None) -> Muon:
        parameters = [nn.Parameter(item.clone()) for item in start]
        optimizer = Muon(parameters, block=block, weight_decay=0.1)
        stacks = large_stacks(optimizer)
        if rank is not None and stacks:
            optimizer.own = dict(zip(stacks, assign_matrices([*stacks.values()], workers)[rank], strict=True))
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        return optimizer

    whole = large_stacks(stepped(None))
    parts = [stepped(rank) for rank in range(workers)]
    for place, (parameter, shape) in enumerate(whole.items()):
        pieces = []
        for optimizer in parts:
            mine = list(large_stacks(optimizer))[place]
            pieces.append(as_matrices(mine.detach(), shape)[optimizer.own[mine]])
        assert torch.equal(torch.cat(pieces), as_matrices(parameter.detach(), shape))


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(33, 80), st.integers(33, 800)), min_size=1), st.integers(1, 9))
def test_every_matrix_has_one_owner(stacks: list[tuple[int, int, int]], workers: int) -> None:
    divided = assign_matrices(stacks, workers)
    for place, (count, *_) in enumerate(stacks):
        owned = [number for parts in divided for number in range(count)[parts[place]]]
        assert owned == list(range(count))
    assert 1 / workers - 1e-9 <= largest_share(stacks, workers) <= 1


def test_it_pays_for_wide_networks_only() -> None:
    wide, lenet5 = [(8, 64, 784), (8, 64, 512)], [(2, 60, 400), (1, 84, 120)]
    assert parallel_pays(wide, 2)
    assert parallel_pays(wide, 16)
    assert not parallel_pays(wide, 1)
    assert not parallel_pays(lenet5, 2)
    assert not parallel_pays(lenet5, 16)
    assert not parallel_pays([], 2)
    assert not parallel_pays([(2, 64, 9216)], 16), "two workers would write a lot into fourteen others"


@pytest.mark.parametrize("workers", [2, 3])
def test_training_gives_the_same_bits(choose: Any, workers: int) -> None:
    found = []
    for divided in (True, False):
        choose(divided)
        threads = Threads(make_task(**NARROW | {"workers": workers})).train()
        assert (threads.workers[0].trainer.shared_orthogonalization is not None) == divided  # type: ignore[attr-defined]
        states = [worker.replica.network.state_dict() for worker in threads.workers]
        assert all(same(states[0], state) for state in states)
        found.append(threads.weights)
    assert same(*found)


def test_it_does_not_pay_with_convolutions() -> None:
    layers = nn.Linear(512, 512), nn.Conv2d(1, 4, 3)
    assert stacks_worth_sharing(Muon(layers[0]), 2)
    assert not stacks_worth_sharing(Muon(nn.Sequential(*layers)), 2)


@pytest.mark.timeout(90)
@pytest.mark.usefixtures("_in_a_folder_of_its_own")
def test_processes_divide_the_steps_of_a_wide_network(choose: Any) -> None:
    assert divides(**WIDE)
    choose(divided=False)
    whole = Threads(make_task(**WIDE)).train()
    assert same(train(**WIDE, engine="processes").model.state_dict(), whole.weights)


@pytest.mark.parametrize(
    "fields", [{"optimizer": "sgd"}, {"average": "weights"}, {"strategy": "ring", "workers": 4}], ids=str
)
def test_others_take_whole_steps(choose: Any, fields: dict[str, Any]) -> None:
    choose(divided=True)
    assert not divides(**WIDE | fields)
