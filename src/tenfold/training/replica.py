"""One replica: a network with its optimizer, and its training step."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tenfold.data import Part, batches
from tenfold.data.part import select_rows, tree_leaves, tree_map
from tenfold.errors import ExperimentError
from tenfold.experiment import Training
from tenfold.machine.cores import pinned, using_threads
from tenfold.machine.devices import start_libraries, supports_graphs, synchronize
from tenfold.machine.liveness import keeping_freed_memory
from tenfold.training.evaluation import TrainingAccuracy
from tenfold.training.flat_weights import BatchNormStatistics, FlatState
from tenfold.training.measures import AlignedMeasure, Measure, is_mean_of_pieces, loss_as_sums, shares_of_pieces
from tenfold.training.network_call import autocast, call_network
from tenfold.training.optimizers import has_sparse_gradients, make_optimizer
from tenfold.training.randomness import seed_everything, training_rng
from tenfold.training.schedules import LrSchedule, plan_lr_schedule

Seed = tuple[int, int, int]
"""Seed of the experiment, epoch, rank: they seed the random generators of a replica."""
Visits = tuple[Part, Tensor]
"""The samples of a replica in an epoch: a part, and sample numbers in order."""


@contextmanager
def set_matmul_precision(precision: str) -> Iterator[None]:
    """In this block, allow or forbid tf32 for matrix products and convolutions on a GPU, depending on the precision.

    By default torch allows it for convolutions and forbids it for products; here fp32 means fp32. On a CPU this has no
    effect.
    """
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = precision not in ("fp32", "fp64")
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


@contextmanager
def training_environment(threads: int, precision: str, cpus: tuple[int, ...] = ()) -> Iterator[str | None]:
    """In this block, train with these threads on these cores (none: any); the process is restored afterwards.

    Yields a sentence if the system cannot pin it to the cores.
    """
    with (
        using_threads(threads),
        keeping_freed_memory(),
        training_rng(),
        set_matmul_precision(precision),
        pinned(cpus) as trouble,
    ):
        yield trouble


def product(matrix: Tensor, other: Tensor) -> Tensor:
    """Multiply two matrices in full fp32 even if training uses tf32, so averaged weights keep their precision."""
    with set_matmul_precision("fp32"):
        return matrix @ other


class TrainedState:
    """The base of one replica and of many stacked ones: the state, the number of steps, and the moving average."""

    k = 1
    """How many replicas there are."""
    timed_by_step = True
    """Whether to wait after every step, to time it; otherwise only when losses are logged."""
    description = ""
    """How the replicas step and why, if there is something to say."""
    lr_schedule: LrSchedule

    def __init__(self, training: Training, vector: Tensor, batch_norm: BatchNormStatistics) -> None:
        self.training = training
        self.batch_norm = batch_norm
        self.vector = vector
        """The whole state, which rounds average: a flat vector, or one for each replica as the rows of a matrix."""
        self.steps = 0
        self.ema_weights = vector.clone() if training.ema is not None else None
        """The exponential moving average of the weights, where the experiment asks for it."""
        self.accuracy: TrainingAccuracy | None = None
        """Counts correct predictions on training batches, if they are requested."""

    def synchronize(self) -> None:
        """Wait until the device has completed its work, so that later work is timed separately."""
        synchronize(self.vector.device)

    def update_ema(self) -> None:
        """Move the moving average towards the weights after this step: faster in the first steps, then by 1 - ema."""
        if self.ema_weights is not None and self.training.ema is not None:
            decay = min(self.training.ema, (1 + self.steps) / (10 + self.steps))
            self.ema_weights.lerp_(self.vector, 1 - decay)

    def state(self) -> dict[str, Any]:
        """Return the state from which a resumed run continues bit for bit."""
        ema = {"ema": self.ema_weights} if self.ema_weights is not None else {}
        return {"steps": self.steps, **ema, **self.lr_schedule.state()}

    def load(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self.lr_schedule.load(state)
        if self.ema_weights is not None:
            self.ema_weights.copy_(state["ema"])

    def use_ema(self) -> None:
        """Replace the weights by their exponential moving average, if the experiment has one."""
        if self.ema_weights is not None:
            self.vector.copy_(self.ema_weights)
            self.batch_norm.update_singular_vectors()


class Replica(TrainedState):
    """A network, its state as one flat vector, its optimizer, and the number of its steps."""

    def __init__(
        self,
        network: nn.Module,
        training: Training,
        loss: Measure,
        *,
        steps_per_epoch: int,
        lr_scale: float = 1.0,
        labels_per_sample: float = 1.0,
        warmup: float | None = None,
        vector: Tensor | None = None,
    ) -> None:
        self.network = network
        self.flat = FlatState(network, vector)
        super().__init__(training, self.flat.vector, self.flat.batch_norm)
        self.loss = loss
        self._divisor = loss.divisor if isinstance(loss, AlignedMeasure) else loss_as_sums(loss)[1]
        self.lr_schedule = plan_lr_schedule(
            training,
            network,
            steps_per_epoch=steps_per_epoch,
            lr_scale=lr_scale,
            labels_per_sample=labels_per_sample,
            warmup=warmup,
        )
        self.lr = self.lr_schedule.base
        self.optimizer = make_optimizer(training, network, self.lr)
        self._needs_closure = training.needs_closure or isinstance(self.optimizer, torch.optim.LBFGS)
        self._device_type = self.flat.vector.device.type
        self._is_sparse = has_sparse_gradients(network)
        takes_sparse = training.clip is None and training.optimizer_traits.takes_sparse
        self._needs_dense = self._is_sparse and not takes_sparse
        self.scaler = torch.amp.GradScaler(self._device_type) if training.precision == "fp16" else None
        """Scales the loss, so that gradients in fp16 do not vanish, and skips steps whose gradients overflow."""
        self.trainable_parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]

    def prepare(self, sizes: Mapping[int, int]) -> str:
        """Prepare for batches of these sizes, given with their counts; return the problem if that fails, or ""."""
        with autocast(self.training.precision, self._device_type):
            start_libraries(self.network, self.flat.vector.device, sizes)
        return ""

    def begin_epoch(self, seeds: Sequence[Seed]) -> None:
        seed_everything(*seeds[0])
        self.network.train()

    def batches(self, visits: Sequence[Visits], batch_size: int) -> Iterator[tuple[Any, Any]]:
        """Yield the arguments of `step` for each batch."""
        [(part, order)] = visits
        return part.batches(batches(order, batch_size))

    def batch(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Return the samples and targets of a batch, given the arguments of `step`."""
        return x, y

    def find_replaced(self, *, memory: bool) -> str:
        """Return the name of a parameter that the network has replaced, or ""; `memory`: or moved."""
        return self.flat.find_replaced(self.network, memory=memory)

    def forward(self, x: Any, y: Any) -> tuple[Any, Tensor]:
        """Return the outputs and the loss of one batch, ready for the backward pass."""
        with autocast(self.training.precision, self._device_type):
            outputs = call_network(self.network, x)
            if self.accuracy is not None:
                self.accuracy.keep(outputs, y)
            return outputs, self.loss(outputs, y)

    def backward(self, x: Any, y: Any) -> Tensor:
        """Compute the gradient of one batch in the parameters' `grad`, and return its loss."""
        self._forget_gradients()
        if self.training.accumulate > 1:
            return self._accumulate(x, y)
        _, loss = self.forward(x, y)
        self._scaled(loss).backward()  # type: ignore[no-untyped-call]
        if self._needs_dense:
            self.densify()
        return loss.detach()

    def _forget_gradients(self) -> None:
        if type(self.optimizer).zero_grad is not torch.optim.Optimizer.zero_grad:
            self.optimizer.zero_grad(set_to_none=True)
            return
        for group in self.optimizer.param_groups:  # without torch's profiling, which takes 3% of a small step
            for parameter in group["params"]:
                parameter.grad = None

    def densify(self) -> None:
        """Convert sparse gradients, as from `EmbeddingBag(sparse=True)`, to dense ones."""
        for parameter in self.trainable_parameters if self._is_sparse else ():
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()

    def _scaled(self, loss: Tensor) -> Tensor:
        return loss if self.scaler is None else self.scaler.scale(loss)

    def _accumulate(self, x: Any, y: Any) -> Tensor:
        """Compute the gradient of one batch in pieces; their losses are weighted to add up to the batch's loss."""
        total = torch.zeros((), dtype=self.flat.vector.dtype, device=tree_leaves(y)[0].device)
        before: tuple[Any, Any] | None = None
        for rows, y_piece, share in self.pieces(y, self.training.accumulate):
            outputs, loss = self.forward(select_rows(x, rows), y_piece)
            before = self.check_piece(before, (outputs, y_piece))
            loss = loss * share
            self._scaled(loss).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        if self._needs_dense:
            self.densify()
        return total

    def pieces(self, y: Any, count: int) -> list[tuple[Tensor, Any, float]]:
        """Divide a batch with these targets into pieces: return the rows, the targets and the loss weight of each.

        Pieces without labels are left out.
        """
        rows = torch.arange(len(tree_leaves(y)[0]), device=tree_leaves(y)[0].device)
        pieces = torch.tensor_split(rows, min(count, len(rows)))
        targets = [select_rows(y, piece) for piece in pieces]
        shares = shares_of_pieces(self._divisor, targets)
        return [piece for piece in zip(pieces, targets, shares, strict=True) if piece[2]]

    @property
    def pieces_setting(self) -> str:
        return f"training.accumulate = {self.training.accumulate}"

    def check_piece(self, before: tuple[Any, Any] | None, piece: tuple[Any, Any]) -> tuple[Any, Any] | None:
        """Raise ExperimentError if the loss of a piece and its predecessor together is not the mean of their losses.

        Pieces are outputs and targets; return the reference for the next piece.
        """
        if self._divisor is not None:
            return None
        outputs, targets = piece
        now = tree_map(Tensor.detach, outputs), targets
        if before is None:
            return now
        with autocast(self.training.precision, self._device_type):
            if is_mean_of_pieces(self.loss, [before, piece]):
                return now
        name = getattr(self.loss, "name", "the loss")
        raise ExperimentError(
            f"{self.pieces_setting}: {name} of a batch differs from the mean over its micro-batches, so their "
            "gradients would differ from the batch's; use one of torch's losses or a mean over samples, or set it to "
            "1 and save memory with activation_checkpointing"
        )

    def clip(self) -> None:
        if self.training.clip is not None:
            nn.utils.clip_grad_norm_(self.trainable_parameters, self.training.clip)

    def begin_step(self) -> None:
        """Set the learning rate of the next step, and count the step."""
        self.lr = self.lr_schedule.at(self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * group.get("lr_ratio", 1.0)
        self.steps += 1

    def update(self) -> None:
        """Take an optimizer step with the current gradients."""
        self.optimizer.step()

    def step(self, x: Any, y: Any) -> Tensor:
        """Train on one batch: forward, backward, optimizer step. Return its loss before the step.

        If gradients are averaged, `workers/trainers.py` calls these parts one by one.
        """
        self.begin_step()
        if self._needs_closure:
            return self.optimizer.step(lambda: self._clipped(x, y))  # type: ignore[arg-type, return-value]
        if self.scaler is not None:
            loss = self.backward(x, y)
            self.scaler.unscale_(self.optimizer)
            self.clip()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            return loss
        loss = self._clipped(x, y)
        self.optimizer.step()
        return loss

    def _clipped(self, x: Any, y: Any) -> Tensor:
        loss = self.backward(x, y)
        self.clip()
        return loss

    def state(self) -> dict[str, Any]:
        return super().state() | {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "centers": self.batch_norm.reference_means,
            **({"scaler": self.scaler.state_dict()} if self.scaler is not None else {}),
        }

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])
        for reference, saved in zip(self.batch_norm.reference_means, state["centers"], strict=True):
            reference.copy_(saved)


def make_replica(
    network: nn.Module,
    training: Training,
    loss: Measure,
    *,
    part: Part,
    warn: Callable[[str], None],
    capturing: bool = True,
    **options: Any,
) -> Replica:
    """Return the fastest replica for its device: on a GPU, one with steps captured in a CUDA graph (`Graphed`).

    If they cannot be captured, `warn` is called with the reason. `capturing` says whether whole steps may be captured.
    """
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    if not supports_graphs(device):
        return Replica(network, training, loss, **options)
    from tenfold.training.stacked_replicas import Graphed, find_capture_obstacle

    why = find_capture_obstacle(training, part) if capturing else "the replicas average more than their weights"
    if not why:
        try:
            return Graphed(network, training, loss, part=part, **options)
        except ExperimentError as error:
            why = str(error)
    warn(describe_slow_steps(why) + ("; nor are they compiled" if training.compile is True else ""))
    return Replica(network, training, loss, **options)


def describe_slow_steps(why: str) -> str:
    """Return a warning about steps that are not captured."""
    return f"steps are not captured in a CUDA graph, which is slow for small networks: {why}"
