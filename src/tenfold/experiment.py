"""The experiment: what to run, as one frozen value that loads from and saves to TOML.

Five sections hold the fields. In Python and on the command line each field also goes by its own short name
(`lr` is `training.lr`); the names are unique across sections. A section's `name` and `options` are called after the
section: `model` is `model.name`, `data_options` is `data.options`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tenfold.errors import ExperimentError
from tenfold.files import read_toml, write_toml
from tenfold.sentences import Complaints
from tenfold.values import (
    Count,
    Fraction,
    Listed,
    ManyNamed,
    Named,
    Options,
    Tabled,
    Text,
    Whole,
    check_name,
    plain,
)

MODELS = ("lenet5", "cnn", "mlp")
SOURCES = ("digits", "mnist", "fashion-mnist")
LOSSES = ("cross-entropy", "mse", "l1", "bce")
METRICS = ("accuracy", "mae", "rmse")
FOLD_FIELDS = ("folds", "fold_kind", "fold_repeats", "fold_mode")
"""Of the division, what a cross-validation goes by."""


def _scorers(metric: object) -> list[str]:
    """Return the scorer of scikit-learn that a metric is or is nearly called, if it is none of the built-in ones."""
    if not isinstance(metric, str) or metric in METRICS or ":" in metric or metric.startswith("<"):
        return []
    import difflib

    from sklearn.metrics import get_scorer_names

    near = difflib.get_close_matches(metric, get_scorer_names(), n=1, cutoff=0.6)
    return [name for name in near if name not in METRICS]


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

    name: Named = "lenet5"
    """A built-in network (lenet5, cnn, mlp), "package.module:callable", or a callable that returns an nn.Module."""
    hidden: Annotated[tuple[Count, ...] | None, Listed] = None
    """Widths of the mlp's hidden layers, such as [128, 64]. Unset: the network's own."""
    activation: Literal["relu", "sigmoid", "tanh", "gelu"] | None = None
    """The function between layers. Unset: the network's own (relu)."""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Chance of dropping a unit while training. Unset: the network's own (0)."""
    batchnorm: bool | None = None
    """Whether to normalise batches between layers. Unset: the network's own (no)."""
    options: Options = {}
    """Further keyword arguments for a callable of your own."""

    _known = field_validator("name")(lambda name: check_name(name, "model", MODELS))


class Data(Section):
    """What is learnt from, and how it is split into parts."""

    name: Named = "mnist"
    """A built-in source (digits, mnist, fashion-mnist), "package.module:callable", or the data themselves."""
    test_fraction: Fraction | None = None
    """Share of all samples kept for testing. Unset: the source's own test part, or 0.2 where it has none."""
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the training samples kept aside to watch the training; 0 watches the test part."""
    stratify: bool = True
    """Keep the proportions of the classes in every part."""
    split_seed: Whole = 0
    """Decides which samples go into which part; apart from `seed`, so that seeds compare on the same parts."""
    limit: Count | None = None
    """Use at most this many samples of each part, for a quick try."""
    groups: Named | None = None
    """The group of each training sample, as an array or "package.module:callable"; no group is in two parts."""
    distribute: Literal["each", "scatter"] = "each"
    """Under a launcher: every rank reads the data by itself, or rank 0 reads them and sends each rank its share."""
    loader_workers: Whole = 0
    """Processes that load batches; 0 loads them where the training runs, fastest for data in memory."""
    options: Options = {}
    """Keyword arguments for a callable of your own."""

    _known = field_validator("name")(lambda name: check_name(name, "data set", SOURCES))


class Training(Section):
    """How one replica learns."""

    epochs: Count = 3
    """Passes over the training part."""
    batch_size: Count = 64
    """Samples per step of one replica."""
    optimizer: Literal["sgd", "adam", "adamw", "rmsprop", "adagrad", "lbfgs"] = "sgd"
    """The rule that turns gradients into steps."""
    lr: Annotated[float, Field(gt=0)] | None = None
    """Learning rate. Unset: usual for the optimizer (sgd 0.05, adagrad 0.01, lbfgs 0.1, the others 0.001)."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Momentum of sgd; other optimizers have their own."""
    nesterov: bool = False
    """Nesterov's momentum, for sgd."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Pull of the weights towards zero."""
    optimizer_options: Options = {}
    """Further keyword arguments of the torch optimizer, such as {betas = [0.9, 0.99]}."""
    schedule: Literal["constant", "cosine", "one-cycle"] = "cosine"
    """How the learning rate changes over the run."""
    warmup: Annotated[float, Field(ge=0)] | None = None
    """Epochs, or parts of one, in which the learning rate rises from near zero.

    Unset: a fifth of the run, at most one epoch, where several workers scale the rate up; else none."""
    clip: Annotated[float, Field(gt=0)] | None = None
    """Largest norm of a step's gradient. Unset: not clipped."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """Number format of forward and backward passes: tf32 (NVIDIA GPUs) and bf16 keep the weights in fp32."""
    loss: Named | None = None
    """cross-entropy, mse, l1, bce, "package.module:callable", or f(outputs, targets). Unset: chosen by the targets."""
    metrics: ManyNamed = ()
    """accuracy, mae, rmse, a scorer of scikit-learn (f1_macro), or f(outputs, targets). Empty: accuracy for classes."""
    patience: Count | None = None
    """Stop after this many epochs without a better watched loss, and keep the best epoch's weights. Unset: never."""
    seed: Whole = 0
    """Decides the first weights, the order of samples and the dropout."""
    log_every: Count = 20
    """Steps between two points of the training curve."""

    _known_loss = field_validator("loss")(lambda loss: loss and check_name(loss, "loss", LOSSES))
    _known_metrics = field_validator("metrics")(
        lambda metrics: tuple(check_name(metric, "metric", (*METRICS, *_scorers(metric))) for metric in metrics)
    )


class Division(Section):
    """How the training data are divided among replicas, and how these mix."""

    workers: Count = 1
    """Replicas that train side by side, each on its own shard."""
    strategy: Literal[
        "allreduce",
        "butterfly",
        "ring",
        "hopping-ring",
        "gossip",
        "hierarchical",
        "parameter-server",
        "none",
        "downpour",
        "easgd",
        "ad-psgd",
    ] = "allreduce"
    """Who averages with whom in a round."""
    strategy_options: Options = {}
    """Keyword arguments of the strategy, such as {sides = 1} for ring."""
    sync_every: Count | None = None
    """Steps between two rounds; without meaning for gradients (every step) and asynchronous strategies (own pace).

    Unset: 4, or 16 with an outer optimizer, whose momentum makes each round count for more."""
    local_after: Whole = 0
    """Mix at every step until this one, then every `sync_every` (post-local SGD)."""
    average: Literal["weights", "gradients"] = "weights"
    """What a round averages."""
    outer: Literal["none", "bmuf", "slowmo", "diloco"] = "none"
    """What the average is used for: taken as it is, or as a step of an outer optimizer."""
    outer_options: Options = {}
    """Keyword arguments of the outer optimizer."""
    compression: Literal["none", "bf16", "int8", "topk", "1bit"] = "none"
    """How what travels is made smaller."""
    compression_options: Options = {}
    """Keyword arguments of the compression, such as {fraction = 0.01} for topk."""
    lr_scaling: Literal["auto", "none", "linear", "sqrt"] = "auto"
    """How the learning rate grows with the workers that average in rounds, each of which takes fewer steps. auto:
    sqrt for up to 8 workers, twice the rate for more."""
    optimizer_state: Literal["local", "average", "reset"] = "local"
    """What a round does to the optimizers' momenta."""
    shards: Literal["iid", "contiguous", "label-skew", "fractions"] = "iid"
    """How the samples are dealt out to the replicas."""
    skew: Annotated[float, Field(gt=0)] = 0.5
    """Dirichlet's alpha for label-skew shards: the smaller, the more one-sided."""
    fractions: Annotated[tuple[Fraction, ...] | None, Listed] = None
    """Each worker's share of the samples, for shards = "fractions"."""
    folds: Annotated[int, Field(ge=2, lt=2**63)] | None = None
    """Parts of a cross-validation. Unset: none."""
    fold_kind: Literal["auto", "plain", "stratified", "group"] = "auto"
    """How folds are cut. auto: group where there are groups, else stratified for classes, else plain."""
    fold_repeats: Count = 1
    """How often the cross-validation is done, each time with other folds."""
    fold_mode: Literal["auto", "folds-over-workers", "data-and-folds", "fold-by-fold", "fused"] = "auto"
    """How folds are trained. auto: fold-by-fold for several workers; for one, folds-over-workers on cpu, else fused."""

    @property
    def pace(self) -> int:
        """Steps between two rounds: `sync_every`, or what is usual."""
        return self.sync_every or (4 if self.outer == "none" else 16)

    @property
    def needs_second_buffer(self) -> bool:
        """Whether gradients or momenta travel, which need a buffer of their own beside the one of the weights."""
        return self.average == "gradients" or self.optimizer_state == "average"


class Machine(Section):
    """Where it runs."""

    device: Text = "cpu"
    """cpu, cuda, cuda:1, mps, or auto (the fastest there is)."""
    threads: Count | None = None
    """Threads of each worker. Unset: the cores this process may use, shared among the workers."""
    pin: Text = "none"
    """Cores for the workers: none, compact, scatter, or a list such as "0,1,2,4"."""
    oversubscribe: bool = False
    """Allow more threads than there are cores."""
    engine: Literal["auto", "serial", "processes", "launched", "virtual"] = "auto"
    """What hosts the replicas. auto: serial for one worker, processes for more, launched under torchrun or mpirun."""
    transport: Literal["auto", "shared-memory", "torch", "mpi"] = "auto"
    """How tensors move between workers. auto: in shared memory; under a launcher also by torch.distributed or MPI."""
    on_failure: Literal["end", "continue"] = "end"
    """When a worker is lost: end the run, to be resumed, or go on with the others from the last whole epoch."""
    fused: Literal["auto", "vmap", "loop"] = "auto"
    """How replicas on one device step: in the same operations, one by one, or whichever a short probe finds faster."""
    cluster: Annotated[Text | Options | None, Tabled] = None
    """Hardware of a virtual cluster: a file, the same as a table, or "here" for the processes of this machine.

    Unset: nodes of one worker each, any two of them joined by `link`."""
    link: Annotated[Text | Options | None, Tabled] = None
    """What joins the nodes of a virtual cluster: 1gbe, 10gbe, wifi, ..., or its latency and bandwidth. Unset: 10gbe."""


SECTIONS: dict[str, type[Section]] = {
    "model": Model,
    "data": Data,
    "training": Training,
    "division": Division,
    "machine": Machine,
}


def _short(section: str, field: str) -> str:
    if field == "name":
        return section
    return f"{section}_{field}" if field == "options" else field


FIELDS: dict[str, tuple[str, str]] = {
    _short(section, field): (section, field) for section, cls in SECTIONS.items() for field in cls.model_fields
}
"""Every field's short name, with the section and the field that it stands for."""
COMPLAINTS = Complaints(dict(SECTIONS), FIELDS)


class Experiment(Section):
    """What to run. Give the fields by their short names, or by section.

    >>> Experiment(model="mlp", lr=0.1).training.lr
    0.1
    """

    name: Text = ""
    """A title for tables and plots."""
    model: Model = Model()
    data: Data = Data()
    training: Training = Training()
    division: Division = Division()
    machine: Machine = Machine()

    def __init__(self, /, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            # What is neither text nor an object fails both ways; the second says nothing new.
            found = [one for one in error.errors() if one["type"] != "is_instance_of"]
            raise ExperimentError("\n".join(map(COMPLAINTS.sentence, found))) from None

    @model_validator(mode="before")
    @classmethod
    def _nest(cls, fields: Any) -> Any:
        return nested(fields) if isinstance(fields, dict) else fields

    @field_validator("division")
    @classmethod
    def _shares_add_up(cls, division: Division) -> Division:
        if division.shards == "fractions":
            if division.fractions is None or len(division.fractions) != division.workers:
                raise ValueError(f'shards = "fractions" needs one of `fractions` per worker, {division.workers} in all')
            if abs(sum(division.fractions) - 1) > 1e-6:
                raise ValueError(f"`fractions` add up to {sum(division.fractions):g}; they must add up to 1")
        return division

    @classmethod
    def load(cls, path: str | Path, /, **changes: Any) -> Self:
        """Read an experiment from a TOML file, with some fields changed."""
        path = Path(path)
        fields = read_toml(path, "an experiment", f"`tenfold init {path}` writes one")
        try:
            return cls(**nested(fields, changes))
        except ExperimentError as error:
            if changes and cls._accepts(fields):
                raise  # the file is not to blame
            raise ExperimentError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from None

    @classmethod
    def _accepts(cls, fields: dict[str, Any]) -> bool:
        try:
            cls(**fields)
        except ExperimentError:
            return False
        return True

    def save(self, path: str | Path) -> None:
        """Write the experiment as TOML; fields that are unset are left out."""
        write_toml(Path(path), self.model_dump(mode="json", exclude_none=True))

    def replace(self, /, **fields: Any) -> Self:
        """Return the experiment with some fields changed, by their short names."""
        return type(self)(**nested(self._values(), fields))

    @property
    def title(self) -> str:
        """Its name, or those of its model and data."""
        return self.name or "-".join(
            str(getattr(self, key).model_dump(mode="json")["name"]).strip("<>").split(":")[-1]
            for key in ("model", "data")
        )

    def flat(self) -> dict[str, Any]:
        """Return every field's value as text, numbers and lists, by its short name; the pace also where it is unset."""
        dumped = self.model_dump(mode="json")
        values = {short: dumped[section][field] for short, (section, field) in FIELDS.items()}
        return {"name": self.name} | values | {"sync_every": self.division.pace}

    def _values(self) -> dict[str, Any]:
        sections = {
            key: {field: getattr(getattr(self, key), field) for field in SECTIONS[key].model_fields} for key in SECTIONS
        }
        return {"name": self.name} | sections


def nested(*layers: dict[str, Any]) -> dict[str, Any]:
    """Merge fields into sections, later layers winning. Keys: short names, sections, or "section.field"."""
    merged: dict[str, Any] = {}

    def put(section: str, fields: dict[str, Any]) -> None:
        if isinstance(merged.setdefault(section, {}), dict):  # else it is refused as a whole when it is validated
            merged[section] |= {field: plain(value) for field, value in fields.items()}

    for layer in layers:
        for key, value in layer.items():
            if key in SECTIONS and isinstance(value, Section):
                value = {field: getattr(value, field) for field in type(value).model_fields}
            section, _, field = str(key).partition(".")
            if key in SECTIONS and _is_section(key, value):
                put(key, value)
            elif field and section in SECTIONS:
                field, _, option = field.partition(".")
                known = merged.get(section, {}).get(field, {}) if isinstance(merged.get(section), dict) else {}
                put(section, {field: {**known, option: value} if option and isinstance(known, dict) else value})
            elif key in FIELDS:
                section, field = FIELDS[key]
                put(section, {field: value})
            else:
                merged[key] = value
    return merged


def _is_section(key: str, value: object) -> bool:
    """Tell a section's table from data given as a dictionary of parts."""
    return isinstance(value, dict) and not (key == "data" and value and set(value) <= {"train", "validation", "test"})
