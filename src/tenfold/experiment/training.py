"""Section [training]: how one replica learns."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from tenfold.common.catalog import LOSSES, METRICS, OPTIMIZERS, RANKING_METRIC, SCHEDULES
from tenfold.experiment.python_objects import (
    NameOrObject,
    NamesOrObjects,
    PythonObject,
    RecordedObject,
    check_name,
    label_of,
    named_or_imported,
)
from tenfold.experiment.section import Section
from tenfold.experiment.values import Count, NonNegative, Options, TakesList, Text


def _scorers(metric: object) -> list[str]:
    """Return the ranking metric or scikit-learn scorer that a metric is or is nearly called, unless it is built in."""
    if not isinstance(metric, str) or metric in METRICS or ":" in metric:
        return []
    if RANKING_METRIC.fullmatch(metric):
        return [metric]
    import difflib

    from sklearn.metrics import get_scorer_names

    near = difflib.get_close_matches(metric, get_scorer_names(), n=1, cutoff=0.6)
    return [name for name in near if name not in METRICS]


def _names(value: object) -> object:
    """Return a list of names as a tuple, and a single name as a tuple of one."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


USUAL_BATCH = 64


class Training(Section):
    """How one replica learns."""

    epochs: Count = 3
    """Passes over the training part."""
    batch_size: Count | None = None
    """Samples per step of one replica. Default: 64 for up to 8 workers, then fewer as workers grow, down to 16."""
    optimizer: Annotated[NameOrObject, named_or_imported(OPTIMIZERS)] = "muon"
    """The optimizer: sgd, adam, adamw, rmsprop, adagrad, lbfgs or muon;
    "package.module:Optimizer", a class such as torch.optim.NAdam, or a function of the parameters that returns one."""
    lr: Annotated[float, Field(gt=0)] | None = None
    """Learning rate. Default: sgd 0.05, muon 0.015 sqrt(batch_size / 64), adagrad 0.01, lbfgs 0.1, others 0.001."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Momentum of sgd and muon; other optimizers have their own."""
    nesterov: bool = False
    """Nesterov's momentum, for sgd."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay."""
    optimizer_options: Options = {}
    """Further keyword arguments of the optimizer, such as {betas = [0.9, 0.99]}.

    For muon: steps (of Newton-Schulz), block (rows of a large matrix that are orthogonalized together, 64), nesterov,
    partner (sgd or adamw, for what is not a matrix), partner_lr (the same for any number of workers), and output (muon
    or partner: which of the two changes the last layer)."""
    schedule: Annotated[NameOrObject | None, named_or_imported(SCHEDULES)] = None
    """How the learning rate changes over the run: constant, cosine, linear, one-cycle, "package.module:callable", a
    function of the progress from 0 to 1, or a scheduler of torch (a class, or a function of the optimizer).

    Default: linear for muon, cosine for the others."""
    schedule_options: Options = {}
    """Keyword arguments of a schedule of your own, such as {step_size = 100}."""
    warmup: Annotated[float, Field(ge=0)] | None = None
    """Epochs, or a fraction of one, over which the learning rate rises from near zero.

    Default: if several workers scale the rate up, a twentieth of the run where gradients are averaged, and a fifth of
    it, at most one epoch, where weights are; else none."""
    clip: Annotated[float, Field(gt=0)] | None = None
    """Largest norm of a step's gradient. Default: not clipped."""
    accumulate: Count = 1
    """Pieces in which the gradient of a batch is computed, one after another, to save memory; `batch_size` is that of
    the whole step. Layers that look at a whole batch, such as batch normalization, see one piece."""
    activation_checkpointing: Annotated[bool | tuple[Text, ...], TakesList(_names)] = False
    """Save memory by computing the activations of blocks again in the backward pass: true for the members of
    nn.Sequential and nn.ModuleList that consist of several layers, or the names of modules, such as ["encoder.*"]."""
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Evaluate and keep the exponential moving average of the weights, with this decay per step, such as 0.999.

    Default: the weights themselves."""
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """Number format of forward and backward passes; the weights stay in fp32. tf32 and fp16 are for GPUs; with fp16 the
    loss is scaled, and steps whose gradients overflow are skipped."""
    loss: NameOrObject | None = None
    """cross-entropy, mse, l1, bce, network (the loss that the network computes itself), "package.module:callable", or
    f(outputs, targets).

    Default: cross-entropy for classes, mse for numbers."""
    metrics: NamesOrObjects = ()
    """accuracy, mae, rmse; precision_at_10, recall_at_10, map_at_10, ndcg_at_10 (any number) where a sample has several
    labels; a scikit-learn scorer (f1_macro); or f(outputs, targets). Default: accuracy for classes."""
    patience: Count | None = None
    """Stop after this many epochs without a better watched loss, and keep the best epoch's weights. Default: never."""
    target: float | None = None
    """Stop when the watched part reaches this value of the first metric: at least, or for loss, mae, rmse at most.

    The watched part is the validation part, or the test part where there is none. Default: train all epochs."""
    evaluate_every: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Epochs between two evaluations of the watched part, at most 1; their time is not training time."""
    seed: NonNegative = 0
    """Seed of the initial weights, the order of samples, and dropout."""
    log_every: Count = 20
    """Steps between two points of the training curve."""
    save_predictions: bool = True
    """Store the trained model's outputs on the test part with the run, up to 64 MiB; `run.predictions` reads them."""

    @property
    def samples_per_step(self) -> int:
        """The batch size, or the usual one where it is unset."""
        return self.batch_size or USUAL_BATCH

    @property
    def metric_names(self) -> tuple[str, ...]:
        """What the metrics are called in results: the last part of an import path, or the name of a function."""
        return tuple(map(label_of, self.metrics))

    @property
    def rate_schedule(self) -> "str | PythonObject | RecordedObject":
        """The schedule, or the usual one of the optimizer where it is unset."""
        return self.schedule or ("linear" if self.optimizer == "muon" else "cosine")

    @field_validator("target", mode="before")
    @classmethod
    def _number(cls, target: object) -> object:
        if isinstance(target, str):
            raise ValueError(f"should be a number, not {target!r}; the column to predict is target_column")
        return target

    _known_optimizer = field_validator("optimizer")(lambda name: check_name(name, "optimizer", OPTIMIZERS))
    _known_schedule = field_validator("schedule")(lambda name: name and check_name(name, "schedule", SCHEDULES))
    _known_loss = field_validator("loss")(lambda loss: loss and check_name(loss, "loss", LOSSES))
    _known_metrics = field_validator("metrics")(
        lambda metrics: tuple(check_name(metric, "metric", (*METRICS, *_scorers(metric))) for metric in metrics)
    )

    @property
    def needs_closure(self) -> bool:
        """Whether the optimizer is L-BFGS, which evaluates several gradients in one step."""
        return self.optimizer == "lbfgs" or repr(self.optimizer).endswith(":LBFGS")
