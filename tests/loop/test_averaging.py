"""`average` in loops of one's own: what it does to the models, and that nothing of it stays."""

import inspect
from typing import Any

import pytest
import torch
from loop_threads import backward, data, network, sgd, state_of, step, train
from torch import Tensor, nn

import tenfold
from tenfold.errors import ExperimentError, ModelError, TrainingError
from tenfold.loop.averaging import LoopWorker
from tenfold.mixing import STRATEGIES

SYNCHRONOUS = [name for name in STRATEGIES if not STRATEGIES[name].asynchronous]


def mean(tensors: list[Tensor], weights: list[float] | None = None) -> Tensor:
    weights = weights or [1.0] * len(tensors)
    return sum(tensor.double() * w for tensor, w in zip(tensors, weights, strict=True)) / sum(weights)  # type: ignore


def assert_alike(models: list[nn.Module]) -> None:
    first, *others = [state_of(model) for model in models]
    for other in others:
        for name in first:
            torch.testing.assert_close(other[name], first[name], rtol=1e-6, atol=1e-7)


class TestMixing:
    @pytest.mark.parametrize("size", [1, 2, 3])
    def test_all_begin_with_the_weights_of_rank_0(self, size: int) -> None:
        seen: list[dict[str, Tensor]] = []
        train(size, lambda rank, model, optimizer, worker: seen.append(state_of(model)))
        expected = state_of(network(0))
        assert len(seen) == size
        assert all(torch.equal(item[name], expected[name]) for item in seen for name in expected)

    @pytest.mark.parametrize("strategy", SYNCHRONOUS)
    @pytest.mark.parametrize("size", [2, 3, 4])
    def test_all_leave_with_the_mean(self, strategy: str, size: int) -> None:
        last: dict[int, dict[str, Tensor]] = {}

        def loop(rank: int, model: nn.Module, optimizer: Any, worker: LoopWorker) -> None:
            for number in range(5):
                step(model, optimizer, 10 * rank + number)
            last[rank] = state_of(model)

        models = train(size, loop, strategy=strategy, sync_every=2)
        assert_alike(models)
        for name, tensor in state_of(models[0]).items():
            expected = mean([last[rank][name] for rank in range(size)])
            torch.testing.assert_close(tensor.double(), expected, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
    def test_every_step_is_one_process_with_the_whole_batch(self, dtype: torch.dtype, within: float) -> None:
        """Law 3, in a loop of one's own: weights, gradients, and one process with both batches."""

        def loop(rank: int, model: nn.Module, optimizer: Any, worker: LoopWorker) -> None:
            for number in range(4):
                step(model, optimizer, 10 * rank + number)

        fields: dict[str, Any] = {"optimizer": lambda model: sgd(model, momentum=0.9)}
        fields["make"] = lambda rank: network(rank).to(dtype)
        by_weights = train(2, loop, **fields)[0]
        by_gradients = train(2, loop, average="gradients", **fields)[0]
        whole = network(0).to(dtype)
        optimizer = sgd(whole, momentum=0.9)
        for number in range(4):
            optimizer.zero_grad()
            batches = [data(10 * rank + number) for rank in range(2)]
            x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
            nn.functional.cross_entropy(whole(x.to(dtype)), y).backward()
            optimizer.step()
        for name, tensor in whole.state_dict().items():
            torch.testing.assert_close(by_weights.state_dict()[name], tensor, rtol=10 * within, atol=within)
            torch.testing.assert_close(by_gradients.state_dict()[name], tensor, rtol=10 * within, atol=within)

    def test_rounds_come_every_so_many_steps(self) -> None:
        rounds: list[list[int]] = [[], []]

        def loop(rank: int, model: nn.Module, optimizer: Any, worker: LoopWorker) -> None:
            for number in range(6):
                step(model, optimizer, 10 * rank + number)
                rounds[rank].append(worker.rounds)
            assert worker.steps == 6
            assert (worker.rank, worker.size) == (rank, 2)
            assert worker.bytes_sent > 0

        train(2, loop, sync_every=2, local_after=1)
        assert rounds == [[1, 1, 2, 2, 3, 3]] * 2

    def test_running_variances_are_those_of_all_samples(self) -> None:
        before: dict[int, dict[str, Tensor]] = {}

        def loop(rank: int, model: nn.Module, optimizer: Any, worker: LoopWorker) -> None:
            for number in range(3):
                step(model, optimizer, 10 * rank + number)
            before[rank] = state_of(model)

        counts = [3.0, 1.0]
        make = {"make": lambda rank: network(rank, norm=True), "samples": lambda rank: counts[rank]}
        models = train(2, loop, strategy="none", **make)
        assert_alike(models)
        means = [before[rank]["1.running_mean"].double() for rank in range(2)]
        center = mean(means, counts)
        spread = mean([(mean - center) ** 2 for mean in means], counts)
        expected = mean([before[rank]["1.running_var"] for rank in range(2)], counts) + spread
        result = state_of(models[0])
        torch.testing.assert_close(result["1.running_mean"].double(), center, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(result["1.running_var"].double(), expected, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("outer", ["bmuf", "slowmo", "diloco"])
    @pytest.mark.parametrize("compression", ["none", "int8", "topk"])
    def test_outer_optimizers_and_compression(self, outer: str, compression: str) -> None:
        alike: list[dict[str, Tensor]] = []

        def loop(rank: int, model: nn.Module, optimizer: Any, worker: LoopWorker) -> None:
            for number in range(4):
                step(model, optimizer, 10 * rank + number)
            alike.append(state_of(model))

        train(2, loop, sync_every=2, outer=outer, compression=compression)
        first, second = alike
        assert all(torch.equal(first[name], second[name]) for name in first)

    @pytest.mark.parametrize("optimizer_state", ["average", "reset"])
    def test_the_optimizers_state(self, optimizer_state: str) -> None:
        momenta: list[list[Tensor]] = []

        def loop(rank: int, model: nn.Module, optimizer: Any, worker: LoopWorker) -> None:
            step(model, optimizer, rank)
            found = [optimizer.state.get(parameter, {}).get("momentum_buffer") for parameter in model.parameters()]
            momenta.append([item.clone() for item in found if item is not None])

        train(2, loop, optimizer_state=optimizer_state, optimizer=lambda model: sgd(model, momentum=0.9))
        first, second = momenta
        assert len(first) == (4 if optimizer_state == "average" else 0)
        assert all(torch.equal(item, other) for item, other in zip(first, second, strict=True))


class TestLoopsOfAllKinds:
    def test_gradients_are_accumulated_between_steps(self) -> None:
        def accumulating(rank: int, model: nn.Module, optimizer: Any, worker: LoopWorker) -> None:
            for number in range(6):
                backward(model, 10 * rank + number)
                if number % 2:
                    optimizer.step()
                    optimizer.zero_grad()
            assert (worker.steps, worker.rounds) == (3, 1)

        assert_alike(train(2, accumulating, sync_every=2))

    def test_averaged_gradients_can_be_read_when_the_loop_is_over(self) -> None:
        first, second = train(
            2, lambda rank, model, optimizer, worker: step(model, optimizer, rank), average="gradients"
        )
        for item, other in zip(first.parameters(), second.parameters(), strict=True):
            assert item.grad is not None
            assert other.grad is not None
            assert torch.equal(item.grad, other.grad)

    @pytest.mark.parametrize("average", ["weights", "gradients"])
    @pytest.mark.parametrize("fused", [False, True])
    def test_a_step_that_a_scaler_skips_does_not_count(self, average: str, fused: bool) -> None:
        """Rank 1's second gradient is infinite: it takes a step less, and nobody waits for it."""

        def scaled(rank: int, model: nn.Module, optimizer: Any, worker: LoopWorker) -> None:
            scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
            for number in range(5):
                optimizer.zero_grad()
                x, y = data(10 * rank + number)
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = nn.functional.cross_entropy(model(x), y)
                scaler.scale(loss * float("inf") if (rank, number) == (1, 1) else loss).backward()
                scaler.step(optimizer)
                scaler.update()
            assert worker.steps == 5 - rank

        models = train(2, scaled, average=average, optimizer=lambda model: sgd(model, fused=fused))
        assert_alike(models)
        assert all(tensor.isfinite().all() for tensor in models[0].parameters())

    def test_a_scaled_gradient_is_the_same_gradient(self) -> None:
        def scaled(rank: int, model: nn.Module, optimizer: Any, worker: LoopWorker) -> None:
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** (3 + rank))
            x, y = data(rank)
            scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
            scaler.step(optimizer)

        def plain(rank: int, model: nn.Module, optimizer: Any, worker: LoopWorker) -> None:
            step(model, optimizer, rank)

        kind: dict[str, Any] = {"average": "gradients", "optimizer": lambda model: sgd(model, fused=True)}
        expected = state_of(train(2, plain, **kind)[0])
        for name, tensor in state_of(train(2, scaled, **kind)[0]).items():
            torch.testing.assert_close(tensor, expected[name])

    @pytest.mark.parametrize("average", ["weights", "gradients"])
    @pytest.mark.parametrize("steps", [(0, 3), (7, 2), (1, 5)])
    def test_ranks_may_take_different_numbers_of_steps(self, average: str, steps: tuple[int, int]) -> None:
        def loop(rank: int, model: nn.Module, optimizer: Any, worker: LoopWorker) -> None:
            for number in range(steps[rank]):
                step(model, optimizer, 10 * rank + number)

        models = train(2, loop, average=average, strategy="allreduce", sync_every=2)
        assert_alike(models)
        assert not torch.equal(state_of(models[0])["0.weight"], state_of(network(0))["0.weight"])

    def test_schedules_that_are_at_different_steps_agree_in_a_round(self) -> None:
        """SlowMo divides by the learning rate: with each rank's own, replicas would drift apart."""

        def loop(rank: int, model: nn.Module, optimizer: Any, worker: LoopWorker) -> None:
            for number in range(2 + 3 * rank):
                step(model, optimizer, 10 * rank + number)
                optimizer.param_groups[0]["lr"] /= 2

        assert_alike(train(2, loop, outer="slowmo", sync_every=1))

    def test_lbfgs_steps_by_itself(self) -> None:
        def loop(rank: int, model: nn.Module, optimizer: Any, worker: LoopWorker) -> None:
            def closure() -> Tensor:
                optimizer.zero_grad()
                x, y = data(rank)
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                return loss

            for _ in range(2):
                optimizer.step(closure)
            assert worker.steps == 2

        assert_alike(train(2, loop, optimizer=lambda model: torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)))

    def test_the_mean_for_a_look_and_then_ones_own_again(self) -> None:
        seen: dict[int, list[Tensor]] = {}

        def loop(rank: int, model: nn.Module, optimizer: Any, worker: LoopWorker) -> None:
            for number in range(1 + rank):
                step(model, optimizer, 10 * rank + number)
            own = state_of(model)["0.weight"]
            with worker.mean():
                looked = state_of(model)["0.weight"]
            seen[rank] = [own, looked, state_of(model)["0.weight"]]
            step(model, optimizer, 5)

        assert_alike(train(2, loop, strategy="ring", sync_every=4))
        expected = mean([seen[0][0], seen[1][0]])
        for own, looked, again in seen.values():
            torch.testing.assert_close(looked.double(), expected, rtol=1e-5, atol=1e-7)
            assert torch.equal(own, again)

    def test_a_mean_on_one_rank_only_is_an_error_on_all(self) -> None:
        def loop(rank: int, model: nn.Module, optimizer: Any, worker: LoopWorker) -> None:
            step(model, optimizer, rank)
            if rank == 0:
                with worker.mean():
                    pass

        with pytest.raises((ExperimentError, TrainingError), match="equally often"):
            train(2, loop)


class TestLeaving:
    def test_nothing_stays_behind(self) -> None:
        model = network(3, norm=True)
        optimizer = sgd(model)
        before = state_of(model)
        with tenfold.average(model, optimizer, strategy="allreduce") as worker:
            inside = {tensor.untyped_storage().data_ptr() for tensor in model.parameters()}
            assert len(inside) == 1
            assert worker.size == 1
        assert all(torch.equal(tensor, before[name]) for name, tensor in state_of(model).items())
        storages = {tensor.untyped_storage().data_ptr() for tensor in model.parameters()}
        assert len(storages) == len(list(model.parameters()))
        assert not optimizer._optimizer_step_post_hooks
        assert not optimizer._optimizer_step_pre_hooks

    def test_one_rank_alone_trains_as_without(self) -> None:
        averaged, plain = network(1), network(1)
        optimizers = [sgd(model, momentum=0.9) for model in (averaged, plain)]
        with tenfold.average(averaged, optimizers[0], sync_every=2):
            for number in range(5):
                step(averaged, optimizers[0], number)
        for number in range(5):
            step(plain, optimizers[1], number)
        assert all(
            torch.equal(item, other) for item, other in zip(averaged.parameters(), plain.parameters(), strict=True)
        )

    def test_steps_without_the_block_are_noticed(self) -> None:
        model = nn.Linear(2, 1)
        optimizer = sgd(model)
        block = tenfold.average(model, optimizer)
        with pytest.warns(UserWarning, match="averaged") as seen:
            optimizer.step()
        assert seen[0].filename == __file__
        with block:
            optimizer.step()

    def test_a_function_can_be_decorated(self) -> None:
        model = network(1)
        optimizer = sgd(model)

        @tenfold.average(model, optimizer)
        def loop(number: int) -> int:
            step(model, optimizer, number)
            return number

        assert [loop(number) for number in range(2)] == [0, 1]
        assert not optimizer._optimizer_step_post_hooks

    def test_channels_last_stays_so(self) -> None:
        model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        with tenfold.average(model, sgd(model)):
            pass
        assert model.weight.is_contiguous(memory_format=torch.channels_last)

    def test_an_error_ends_the_others_waiting(self) -> None:
        left: list[int] = []

        def loop(rank: int, model: nn.Module, optimizer: Any, worker: LoopWorker) -> None:
            try:
                if rank == 1:
                    raise RuntimeError("a mistake in the loop")
                step(model, optimizer, 0)
            except (RuntimeError, TrainingError) as error:
                left.append(rank)
                raise error

        with pytest.raises((RuntimeError, TrainingError)):
            train(2, loop)
        assert sorted(left) == [0, 1]

    def test_after_an_error_the_model_is_ones_own_again(self) -> None:
        model = network()
        optimizer = sgd(model)
        with pytest.raises(RuntimeError, match="manual_seed"), tenfold.average(model, optimizer):
            step(model, optimizer, seed=None)  # type: ignore[arg-type]
        assert len({tensor.untyped_storage().data_ptr() for tensor in model.parameters()}) == 4
        assert not optimizer._optimizer_step_post_hooks


class TestRefusals:
    def refused(self, **options: Any) -> str:
        model = options.pop("model", None) or network()
        optimizer = options.pop("optimizer", None) or sgd(model)
        with pytest.raises((ExperimentError, ModelError)) as error, tenfold.average(model, optimizer, **options):
            pass
        return str(error.value)

    def test_unknown_and_unfit_fields(self) -> None:
        assert "butterfly" in self.refused(strategy="buterfly")
        assert "sync_every" in self.refused(sync_every=0)
        assert 'strategy = "easgd" has no rounds' in self.refused(strategy="easgd")
        assert "samples is 0; it should be above 0" in self.refused(samples=0)

    def test_what_does_not_fit_together_among_several(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}.items():
            monkeypatch.setenv(name, value)
        assert 'parallel.outer = "bmuf" requires identical replicas' in self.refused(strategy="ring", outer="bmuf")

    def test_an_optimizer_of_another_model(self) -> None:
        assert "none of the model's parameters" in self.refused(optimizer=sgd(network()))
        model = network()
        assert "parameters outside the model" in self.refused(
            model=model, optimizer=sgd(nn.ModuleList([model, network()]))
        )

    def test_model_and_optimizer_in_the_wrong_order(self) -> None:
        model = network()
        assert "in this order; it got SGD and Sequential" in self.refused(model=sgd(model), optimizer=model)

    def test_lbfgs_has_no_gradients_to_average(self) -> None:
        model = network()
        optimizer = torch.optim.LBFGS(model.parameters())
        said = self.refused(model=model, optimizer=optimizer, average="gradients", strategy="allreduce")
        assert "lbfgs" in said

    def test_lbfgs_on_several_ranks_is_warned_about(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = network()
        optimizer = torch.optim.LBFGS(model.parameters())
        tenfold.average(model, optimizer)  # alone, without a warning
        for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
        with pytest.warns(UserWarning, match="2 workers"):
            tenfold.average(model, optimizer)

    def test_weights_of_another_type(self) -> None:
        assert "float32" in self.refused(model=network().bfloat16())

    def test_a_model_without_parameters(self) -> None:
        empty = nn.Tanh()
        assert "none of the model's parameters" in self.refused(model=empty, optimizer=sgd(network()))

    def test_ranks_that_mean_different_things(self) -> None:
        from loop_threads import together

        from tenfold.experiment import Parallel
        from tenfold.loop.averaging import loop_worker

        def life(rank: int, links: Any) -> None:
            model = network(0)
            with loop_worker(model, sgd(model), Parallel(workers=2, sync_every=1 + rank), links):
                pass

        with pytest.raises(ExperimentError, match="averages"):
            together(2, network(), life)


def test_the_defaults_are_those_of_an_experiment() -> None:
    parameters = inspect.signature(tenfold.average).parameters
    parallel = tenfold.Experiment().parallel
    for name in ("strategy", "sync_every", "average", "local_after", "outer", "compression", "optimizer_state"):
        assert parameters[name].default == getattr(parallel, name)
