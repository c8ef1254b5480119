"""Every field of an experiment, by section: [model], [data], [training], [parallel] and [machine]."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from tenfold.common.metric_traits import METRICS, RANKING_METRIC, lower_is_better
from tenfold.common.optimizer_defaults import OPTIMIZERS, OptimizerTraits, describe_usual_lr, traits_of
from tenfold.errors import ExperimentError
from tenfold.experiment.values import (
    AsNames,
    AsTable,
    AsTuple,
    Count,
    Fraction,
    NameOrObject,
    NamesOrObjects,
    NonNegative,
    Options,
    Positive,
    PythonObject,
    StepsOrEpoch,
    TakesList,
    Text,
    UnrecordedObject,
    WorkerCount,
    check_name,
    label_of,
    member_of,
    named_or_imported,
    refuse_others,
)
from tenfold.registry import (
    COMPRESSIONS,
    ENGINES,
    LOSSES,
    MODELS,
    NETWORK_TRANSPORTS,
    OUTER,
    SCHEDULES,
    SOURCES,
    STRATEGIES,
    nearest,
)

Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp64"]
USUAL_BATCH = 64
MICRO_BATCHES_PER_STAGE = 4
"""The usual number of micro-batches: the bubble of a pipeline is then at most a fifth of its time."""
FOLD_FIELDS = ("folds", "fold_kind", "fold_repeats", "fold_mode")
"""The fields of `[parallel]` that describe a cross-validation."""
STAGE_FIELDS = ("stages", "micro_batches", "schedule")
"""The fields of `[parallel]` that describe a pipeline."""


class Section(BaseModel):
    """Common to all sections: frozen, strict, nothing unknown."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )


class Model(Section):
    """The network that every replica trains."""

    name: Annotated[
        NameOrObject,
        refuse_others("model", MODELS),
        Field(
            description=f"A built-in model ({', '.join(MODELS.built_in)}), one of an installed package, "
            '"package.module:callable", a network, or a callable that returns one.'
        ),
    ] = "lenet5"
    hidden: Annotated[tuple[Count, ...] | None, AsTuple] = None
    """Widths of the mlp's hidden layers, such as [128, 64]. Default: [128]."""
    activation: Literal["relu", "sigmoid", "tanh", "gelu"] | None = None
    """Activation function between layers. Default: relu."""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Probability of dropping a unit while training. Default: 0."""
    batchnorm: bool | None = None
    """Whether to use batch normalization between layers. Default: false."""
    options: Options = {}
    """More keyword arguments for your own callable."""

    @property
    def is_built_in(self) -> bool:
        return isinstance(self.name, str) and self.name in MODELS.built_in


class Data(Section):
    """The data set, and how it is split into train, validation and test."""

    name: Annotated[
        NameOrObject,
        refuse_others("data set", SOURCES),
        Field(
            description=f"A built-in data set ({', '.join(SOURCES.built_in)}), one of an installed package, a file "
            '(.csv, .parquet, .npy, .npz), a folder of images by class, "package.module:callable", or the data '
            "themselves."
        ),
    ] = "mnist"
    test_fraction: Fraction | None = None
    """Share of all samples held out for testing. Default: the data set's own test part, or 0.2 if it has none."""
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the training samples held out for validation; with 0, the test part is evaluated during training."""
    stratify: bool = True
    """Keep the proportions of the classes in every part."""
    split_seed: NonNegative = 0
    """Seed of the split; separate from `seed`, so that runs with different seeds use the same parts."""
    limit: Count | None = None
    """Use at most this many samples of each part, for a quick test."""
    epoch_samples: Count | None = None
    """For a stream (an iterable-style Dataset): samples in an epoch, over all workers together. Default: the stream's
    length, if it has one."""
    groups: Annotated[NameOrObject | None, TakesList(lambda groups: groups)] = None
    """The group of each training sample, as an array or "package.module:callable"; no group is in two parts."""
    target_column: Text | None = None
    """The column of a table, or the key of a dict, to predict. Default: labels, label, targets, target, y
    or class, if there is one."""
    input_columns: Annotated[tuple[Text, ...] | None, AsTuple] = None
    """The columns or keys to pass to the network; several keys become keyword arguments. Default: all but the
    target."""
    classes: Annotated[int, Field(ge=2)] | None = None
    """Number of classes. Default: the largest label + 1; unless a Dataset has an attribute `targets` or `classes`, its
    samples are read one by one to find it."""
    standardize: bool | None = None
    """Subtract the mean of each input and divide by its standard deviation, computed on the training part (of each
    fold, in a cross-validation); also for regression targets, if the loss is mse, l1 or a similar torch loss. Means
    and deviations are stored with the weights, so a trained network takes inputs and predicts in the units of the
    data. Metrics are in these units, too; the loss is that of standardized numbers. Default: true for tables."""
    collate: NameOrObject | None = None
    """Combines a list of samples of a Dataset into a batch, for example by padding; a function or
    "package.module:callable". Default: stack the samples."""
    distribute: Literal["each", "scatter"] = "each"
    """Under a launcher: every rank reads the data (each), or rank 0 reads them and sends each rank its share
    (scatter)."""
    loader_workers: NonNegative = 0
    """Processes that load batches; 0 loads them in the training process, fastest for data in memory."""
    loader: Literal["auto", "dataloader"] = "auto"
    """How batches are read. auto: select samples in memory by index, or use a DataLoader if loader_workers is above 0.
    dataloader: always read samples one by one through torch's DataLoader."""
    options: Options = {}
    """Keyword arguments of your own callable, or options of the data set."""

    @field_validator("collate")
    @classmethod
    def _callable(cls, collate: Any) -> Any:
        if isinstance(collate, PythonObject) and not callable(collate.value):
            raise ValueError(f"should be a function of a list of samples, not a {collate.name}")
        return collate


class Training(Section):
    """How one replica learns."""

    epochs: Count = 3
    """Passes over the training part."""
    batch_size: Count | None = None
    """Samples per step of one replica. Default: 64 for up to 8 workers, then fewer with more workers, down to 16; with
    sandblaster-lbfgs, all samples of the replica."""
    optimizer: Annotated[
        NameOrObject,
        refuse_others("optimizer", OPTIMIZERS),
        named_or_imported(OPTIMIZERS),
        Field(
            description=f"The optimizer: {', '.join(OPTIMIZERS.built_in)}; "
            '"package.module:Optimizer", a class such as torch.optim.NAdam, or a function of the parameters that '
            "returns one. ng-sgd is SGD with natural gradients for linear layers. sandblaster-lbfgs is L-BFGS that all "
            "workers compute together."
        ),
    ] = "muon"
    lr: Annotated[
        float | None,
        Field(
            gt=0,
            description=f"Learning rate. Default: {describe_usual_lr()}. A step has batch_size labels, or up to 64 "
            "times as many if each position of a sample has a label, as in text.",
        ),
    ] = None
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Momentum of sgd, ng-sgd and muon; set that of other optimizers in optimizer_options."""
    nesterov: bool = False
    """Nesterov's momentum, for sgd and ng-sgd."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay."""
    optimizer_options: Options = {}
    """More keyword arguments for the optimizer, such as {betas = [0.9, 0.99]}.

    For muon: steps (of Newton-Schulz), block (rows of a large matrix to orthogonalize together, 64), nesterov,
    embeddings (adamw or partner), embedding_lr (default: lr / 2), partner (sgd or adamw, for parameters that are
    neither matrices nor embeddings), partner_lr (the same for any number of workers), and output (muon or partner, for
    the last layer). For ng-sgd: rank (of the Fisher matrices' low-rank part, 40), alpha (their smoothing, 4),
    update_every (steps between their updates, 4) and history (samples, 2000). For sandblaster-lbfgs: history_size
    (pairs, 10), portions (of a batch), growth (of the samples in a step, theta of arXiv 1802.05374; default: the whole
    batch) and first_samples (512)."""
    schedule: Annotated[
        NameOrObject | None, refuse_others("schedule", SCHEDULES, None, ""), named_or_imported(SCHEDULES)
    ] = None
    """How the learning rate changes over the run: constant, cosine, linear, one-cycle, "package.module:callable", a
    function of the progress from 0 to 1, or a scheduler of torch (a class, or a function of the optimizer).

    Default: linear for muon, cosine for the others."""
    schedule_options: Options = {}
    """Keyword arguments of your own schedule, such as {step_size = 100}."""
    warmup: Annotated[float, Field(ge=0)] | None = None
    """Epochs, or a fraction of one, over which the learning rate rises from near zero.

    Default: none, unless several workers raise the learning rate; then a twentieth of the run if gradients are
    averaged, and a fifth of it, at most one epoch, if weights are averaged."""
    clip: Annotated[float, Field(gt=0)] | None = None
    """Clip the norm of a step's gradient to this value. Default: no clipping."""
    accumulate: Count = 1
    """Number of micro-batches in which the gradient of a batch is computed, one after another, to save memory;
    `batch_size` is that of the whole step. Layers that use a whole batch, such as batch normalization, see one
    micro-batch. Your own loss must be a mean over samples."""
    activation_checkpointing: Annotated[bool | tuple[Text, ...], AsNames] = False
    """Save memory by recomputing the activations of blocks in the backward pass: true for the members of nn.Sequential
    and nn.ModuleList that consist of several layers, or the names of modules, such as ["encoder.*"]."""
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Evaluate and keep the exponential moving average of the weights, with this decay per step, such as 0.999.

    Default: the weights themselves."""
    precision: Precision = "fp32"
    """Number format of forward and backward passes; weights stay in fp32. With fp64, everything is in fp64. tf32 and
    fp16 are for GPUs; with fp16 the loss is scaled, and steps whose gradients overflow are skipped."""
    compile: bool | Literal["auto"] = False
    """On a GPU, use torch.compile for the forward and backward passes of captured steps: true, or auto for runs that
    are long enough to save more than the 10 to 20 s of compiling. A short probe uses it only if steps are faster."""
    loss: Annotated[NameOrObject | None, refuse_others("loss", LOSSES, None, "")] = None
    """cross-entropy, mse, l1, bce, network (the loss that the network computes itself), "package.module:callable", or
    f(outputs, targets).

    Default: cross-entropy for classes, mse for numbers."""
    metrics: Annotated[
        NamesOrObjects,
        Field(
            description=f"{', '.join(METRICS.built_in)}; precision_at_10, recall_at_10, map_at_10, ndcg_at_10 (any "
            "number) for samples with several labels; a scikit-learn scorer (f1_macro); or f(outputs, targets). "
            "The first metric decides which model is best.\n\nDefault: accuracy for classes."
        ),
    ] = ()
    lower_is_better: bool | None = None
    """Whether lower values of your own first metric are better, for targets and for the best fold or setting. Default:
    known for built-in metrics, and for names with words such as error or score."""
    patience: Count | None = None
    """Stop after this many epochs without a better evaluation loss, and keep the best weights. Default: never."""
    target: float | None = None
    """Stop when the first metric reaches this value: at least, or at most if lower is better (loss, rmse, perplexity).

    It is measured on the validation part, or on the test part if there is none. Default: train all epochs."""
    evaluate_every: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Epochs between two evaluations, at most 1; evaluation does not count as training time."""
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

    def prefers_lower(self, metric: str) -> bool | None:
        """Return whether lower values of a metric are better; None if neither its name nor the experiment says so."""
        return lower_is_better(metric, self.lower_is_better if metric in self.metric_names[:1] else None)

    @property
    def lr_schedule_name(self) -> "str | PythonObject | UnrecordedObject":
        """The schedule, or the usual one of the optimizer where it is unset."""
        return self.schedule or self.optimizer_traits.schedule

    @field_validator("target", mode="before")
    @classmethod
    def _number(cls, target: object) -> object:
        if isinstance(target, str):
            raise ValueError(f"should be a number, not {target!r}; to choose the column to predict, set target_column")
        return target

    _known_metrics = field_validator("metrics")(
        lambda metrics: tuple(check_name(metric, "metric", (*METRICS, *_scorers(metric))) for metric in metrics)
    )

    @property
    def optimizer_traits(self) -> OptimizerTraits:
        """What the optimizer needs and keeps."""
        return traits_of(self.optimizer)

    @property
    def needs_closure(self) -> bool:
        """Whether the optimizer evaluates several gradients in one step."""
        return self.optimizer_traits.needs_closure


class Parallel(Section):
    """How data are divided among replicas, and how replicas average; each averaging is a round."""

    workers: WorkerCount = 1
    """Number of replicas that train in parallel, each on its own shard; if the model is divided, several workers
    share a replica. "auto": one per core that this process may use, one on a GPU, or one per rank under a launcher."""
    divide: Literal["data", "layers", "neurons"] = "data"
    """What to divide among the workers. data: each has a whole replica. layers: each has some layers, a stage of a
    pipeline. neurons: each has a share of the outputs of every linear layer and convolution."""
    stages: Annotated[Count | tuple[Text, ...] | None, AsTuple] = None
    """Stages of a pipeline, for divide = "layers": their number, balanced by measured cost, or a list of slices of an
    nn.Sequential, ["0:4", "4:"], or a list of the first module of each stage. With fewer stages than workers, there are
    several pipelines, which average as replicas do. Default: one per worker."""
    micro_batches: Count | None = None
    """Micro-batches per batch in a pipeline. Default: 4 for each stage, at most one for each sample."""
    schedule: Literal["gpipe", "1f1b"] = "1f1b"
    """Order of micro-batches in a stage. gpipe: all forward, then all backward. 1f1b: forward and backward in turns,
    which keeps fewer activations."""
    strategy: Annotated[NameOrObject, refuse_others("strategy", STRATEGIES), named_or_imported(STRATEGIES)] = (
        "allreduce"
    )
    """Who averages with whom in a round: a name, "package.module:Strategy", or a `tenfold.mixing.Strategy`."""
    strategy_options: Options = {}
    """Keyword arguments of the strategy, such as {sides = 1} for ring."""
    sync_every: StepsOrEpoch = None
    """Steps between two rounds, or "epoch" for one round at the end of each epoch; ignored if gradients are averaged (a
    round at every step) and by asynchronous strategies.

    Default: gradients are averaged at every step if average = "auto" allows it; otherwise 4, or 16 with an outer
    optimizer."""
    local_after: NonNegative = 0
    """Average at every step up to this one, then every `sync_every` steps (post-local SGD)."""
    average: Literal["auto", "weights", "gradients"] = "auto"
    """What a round averages: gradients, at every step, or weights, every `sync_every` steps. auto: gradients if the
    strategy is exact and none of these is set: sync_every, local_after, outer, compression, optimizer_state; always
    weights with ng-sgd."""
    outer: Annotated[NameOrObject, refuse_others("outer optimizer", OUTER), named_or_imported(OUTER)] = "none"
    """Outer optimizer, which treats the average of a round as a step; none uses the average itself. A name,
    "package.module:OuterOptimizer", or a class."""
    outer_options: Options = {}
    """Keyword arguments of the outer optimizer."""
    compression: Annotated[
        NameOrObject, refuse_others("compression", COMPRESSIONS), named_or_imported(COMPRESSIONS)
    ] = "none"
    """How messages between workers are compressed: a name, "package.module:Compressor", or a class."""
    compression_options: Options = {}
    """Keyword arguments of the compression, such as {fraction = 0.01} for topk."""
    lr_scaling: Literal["auto", "none", "linear", "sqrt"] = "auto"
    """How the learning rate grows with the number of workers, because each worker takes fewer steps per epoch;
    applies to averaged weights and gradients. auto: sqrt with muon; with other optimizers sqrt for up to 8 workers,
    and twice the learning rate for more."""
    optimizer_state: Literal["auto", "local", "average", "reset"] = "auto"
    """What a round does to the optimizers' state (momentum): keep it (local), average it, or reset it. auto: average
    for muon in synchronous rounds of weights, else local."""
    shards: Literal["iid", "contiguous", "label-skew", "fractions"] = "iid"
    """How the training samples are divided among the replicas."""
    skew: Annotated[float, Field(gt=0)] = 0.5
    """Alpha of the Dirichlet distribution for label-skew shards: smaller values give more uneven shards."""
    fractions: Annotated[tuple[Fraction, ...] | None, AsTuple] = None
    """Each worker's share of the samples, for shards = "fractions"."""
    folds: Annotated[int, Field(ge=2, lt=2**63)] | None = None
    """Number of folds of a cross-validation. Default: none."""
    fold_kind: Literal["auto", "plain", "stratified", "group"] = "auto"
    """How samples are assigned to folds. auto: group if groups are set, else stratified for classes, else plain."""
    fold_repeats: Count = 1
    """Repetitions of the cross-validation, each with different folds."""
    fold_mode: Literal["auto", "folds-over-workers", "data-and-folds", "fold-by-fold", "stacked"] = "auto"
    """How folds are trained. auto: on a CPU, folds-over-workers for one worker and fold-by-fold for several; on a GPU,
    stacked."""

    @property
    def group_size(self) -> int:
        """How many workers hold a replica together: 1, unless the model is divided."""
        if self.divide == "data" or self.workers == 1:
            return 1
        if self.divide == "neurons" or self.stages is None:
            return self.workers
        return self.stages if isinstance(self.stages, int) else len(self.stages)

    @property
    def divides_model(self) -> bool:
        """Whether several workers hold a replica together."""
        return self.group_size > 1

    @property
    def replicas(self) -> int:
        return self.workers // self.group_size

    def count_micro_batches(self, batch_size: int) -> int:
        """Return in how many pieces a batch goes through a pipeline."""
        return min(self.micro_batches or MICRO_BATCHES_PER_STAGE * self.group_size, batch_size)

    @property
    def pace(self) -> int | Literal["epoch"]:
        """Steps between two rounds, or "epoch": `sync_every`, or its default."""
        return self.sync_every or (4 if self.outer == "none" else 16)

    @property
    def steps_between_rounds(self) -> int:
        """Steps between two rounds, where they are known without the data."""
        if self.pace == "epoch":
            raise ExperimentError(
                'parallel.sync_every = "epoch" requires the number of steps in an epoch, which is unknown here; set '
                "sync_every to a number of steps"
            )
        return self.pace

    def counted(self, steps_per_epoch: int) -> "Parallel":
        """Return the section with `sync_every` as a number of steps, given the steps of an epoch."""
        return self.model_copy(update={"sync_every": steps_per_epoch}) if self.pace == "epoch" else self

    @property
    def is_asynchronous(self) -> bool:
        """Whether the strategy has exchanges of two in place of rounds."""
        return bool(member_of(STRATEGIES, self.strategy).asynchronous)

    @property
    def averages_state(self) -> bool:
        """Whether rounds average the optimizer's state, too."""
        return self.optimizer_state == "average" and self.average != "gradients" and not self.is_asynchronous

    @property
    def needs_gradient_buffer(self) -> bool:
        """Whether gradients or momenta are sent, which need a buffer beside the one of the weights."""
        return self.average == "gradients" or self.optimizer_state == "average"


def _device_name(given: object) -> object:
    """Return the name of a torch.device; anything else as it is."""
    return str(given) if type(given).__module__ == "torch" and type(given).__name__ == "device" else given


class Machine(Section):
    """The hardware that runs the experiment."""

    device: Annotated[Text, BeforeValidator(_device_name)] = "cpu"
    """cpu, cuda, cuda:1, mps, or auto (the fastest available)."""
    threads: Count | None = None
    """Threads per worker, also on the nodes of a virtual cluster that does not set them. Default: the available cores
    divided by the number of workers; on a virtual cluster 1."""
    pin: Annotated[Text, BeforeValidator(lambda given: str(given) if type(given) is int else given)] = "none"
    """Cores for the workers: none, compact, scatter, or a list such as "0,1,2,4"."""
    oversubscribe: bool = False
    """Allow more threads than cores."""
    engine: Annotated[
        NameOrObject, refuse_others("engine", ENGINES, "auto"), named_or_imported(["auto", *ENGINES.built_in])
    ] = "auto"
    """Where the replicas run: a name, "package.module:Engine", or a subclass of `tenfold.engines.Engine`. auto:
    serial for one worker; for more, processes on a CPU and one-device (all replicas step together) on a GPU;
    launched under torchrun or mpirun."""
    transport: Annotated[
        NameOrObject,
        refuse_others("transport", NETWORK_TRANSPORTS, "auto", "shared-memory"),
        named_or_imported(["auto", "shared-memory", *NETWORK_TRANSPORTS.built_in]),
    ] = "auto"
    """How tensors move between workers: a name, "package.module:Network", or a subclass of `tenfold.transport.Network`.
    auto: shared memory; under a launcher also torch.distributed or MPI."""
    on_failure: Literal["end", "continue"] = "end"
    """When a worker is lost: end the run, which can be resumed, or continue with the others. With continue, a new
    process replaces a lost worker process; under torchrun, restarted ranks continue from the last completed epoch."""
    replacements: Count = 3
    """How often to replace a worker process that is lost before it completes an epoch; then the run ends."""
    stall_after: Positive | None = None
    """Seconds without progress (a step, an evaluated batch) after which a worker process counts as lost. The ranks of
    several hosts also wait this long for each other at the start, but at least 30 s.

    Default: 20 times the longest interval so far, at least 60; more at startup and in the first steps; 120 for ranks
    at the start."""
    stacking: Literal["auto", "vmap", "loop"] = "auto"
    """How replicas on one device step: in the same operations (vmap), one by one (loop), or whichever a short probe
    finds faster (auto)."""
    cluster: Annotated[Text | Options | None, AsTable] = None
    """Hardware of a virtual cluster: a TOML file, a table, a name that an installed package registers, or "here" for
    this machine.

    Default: nodes of one worker each, with a `link` between any two of them."""
    link: Annotated[Text | Options | None, AsTable] = None
    """The link between the nodes of a virtual cluster: 1gbe, 10gbe, wifi, ..., or a table of latency and bandwidth.

    Default: 10gbe."""

    @property
    def is_virtual(self) -> bool:
        """Whether the times are predicted for a virtual cluster, not measured."""
        return self.engine == "virtual"


def _scorers(metric: object) -> list[str]:
    """Return the ranking metric or scikit-learn scorer with this or a similar name; [] for built-in metrics."""
    if not isinstance(metric, str) or metric in METRICS or ":" in metric:
        return []
    if RANKING_METRIC.fullmatch(metric):
        return [metric]
    if metric == "max_error":  # scikit-learn's scorer of this name, until 1.7, is the negated error
        return ["neg_max_error"]
    from sklearn.metrics import get_scorer_names

    near = nearest(metric, get_scorer_names())
    return [near] if near is not None and near not in METRICS else []
