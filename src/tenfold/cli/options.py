"""Command-line options that several commands share, and their completions in the shell."""

import dataclasses
import functools
import inspect
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from tenfold.common.files import check_output
from tenfold.common.optimizer_defaults import OPTIMIZERS
from tenfold.errors import ExperimentError
from tenfold.registry import EXECUTORS, LOGGERS, MODELS, SOURCES, STRATEGIES

if TYPE_CHECKING:
    from tenfold.executors import Submitter
    from tenfold.experiment import Experiment
    from tenfold.runs import Run


def complete_from(names: Iterable[str]) -> Callable[[str], list[str]]:
    candidates = list(names)
    return lambda incomplete: [name for name in candidates if name.startswith(incomplete)]


def complete_list(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a completion of the last name in a list that is separated by commas."""
    candidates = list(names)

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in candidates if name.startswith(last)]

    return complete


def complete_field(incomplete: str) -> list[str]:
    from tenfold.experiment import FIELDS

    return [f"{name}=" for name in FIELDS if name.startswith(incomplete)]


def complete_tag(context: typer.Context, incomplete: str) -> list[str]:
    tags = {tag for run in _recorded(context) for tag in run.tags}
    return [name for name in sorted(tags) if name.startswith(incomplete)]


def complete_run(context: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """Complete the number of a run, with its title, or the title."""
    recorded = _recorded(context)
    if recorded and "last".startswith(incomplete):
        yield "last", "the newest run"
    for run in reversed(recorded):
        if str(run.id).startswith(incomplete):
            yield str(run.id), run.title
    newest = {run.title: run.id for run in recorded if incomplete and run.title.startswith(incomplete)}
    for title, number in newest.items():
        yield title, f"run {number}"


def _recorded(context: typer.Context) -> "list[Run]":
    """Return the runs of the store that the command line names; none where it cannot be read."""
    import tenfold

    try:
        return tenfold.list_runs(runs=context.params.get("runs"))
    except tenfold.TenfoldError:
        return []


EXPERIMENT, PARALLEL, WHERE = "The experiment", "How the data are divided", "Where it runs"
DEVICES = ("auto", "cpu", "cuda", "mps")
BRACKETS = {"[": ("list", "]", '[64, 32] or ["a", "b"]'), "{": ("table", "}", "{sides = 1}")}
SHORT_NUMBER = re.compile(r"[+-]?(\d+\.|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
"""A number that TOML refuses, as it has no digit before or after its point."""
PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp64")
PINS = ("none", "compact", "scatter")

File = Annotated[
    Optional[Path],  # noqa: UP045 - typer reads this form for an argument that may be left out
    typer.Argument(
        help="An experiment file; `tenfold init` writes one. Default: all fields at their defaults.", show_default=False
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        help="Set any field: lr=0.1, training.lr=0.1, hidden=[64,32].",
        metavar="FIELD=VALUE",
        autocompletion=complete_field,
    ),
]
Runs = Annotated[
    Path | None,
    typer.Option("--runs", help="Folder of the run store. Default: $TENFOLD_RUNS, else ./runs.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def check_report(path: Path | None) -> Path | None:
    """Raise an error for a file that a report cannot be written to, before anything runs."""
    if path is not None:
        check_output(path, "a report", ".html", ".htm")
    return path


Report = Annotated[
    Path | None, typer.Option("--output", "-o", help="Also write an HTML report.", callback=check_report)
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Allow it to load code: pickled models, and import paths that you have not used before.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")]
Log = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        help=f"Also write the run's numbers to {' or '.join(LOGGERS)}, live; may be repeated.",
        show_default=False,
        autocompletion=complete_from(LOGGERS),
    ),
]
LogRanks = Annotated[
    str | None,
    typer.Option("--log-ranks", help="Also show how these ranks spend their time: 0,3, or all.", show_default=False),
]
Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        help="Columns to show beside the settings: train_accuracy,test_accuracy,seconds_with_evaluation.",
        metavar="A,B,...",
        show_default=False,
    ),
]
Select = Annotated[
    bool,
    typer.Option(
        "--select", help="Select the best setting on the validation part, and show test metrics for it alone."
    ),
]
Reference = Annotated[
    str, typer.Argument(metavar="RUN", help="A run's number or title, or last.", autocompletion=complete_run)
]
References = Annotated[
    list[str] | None,
    typer.Argument(metavar="RUN...", help="Runs by number or title, or last.", autocompletion=complete_run),
]
Tags = Annotated[list[str], typer.Argument(metavar="TAG...", help="Words without spaces.", autocompletion=complete_tag)]
Filter = Annotated[
    str,
    typer.Option(
        "--filter",
        "-f",
        help='Only runs that match all conditions: "workers>=4 strategy=butterfly accuracy>99% tag=paper". Names: '
        "status, title, kind, tag, note, run, created, age, seconds, a metric, or a field of the experiment; "
        "operators: = != < <= > >= ~ (contains).",
        show_default=False,
        metavar="CONDITIONS",
    ),
]


def read_steps(text: str) -> int | str:
    return int(text) if text.removeprefix("-").isdecimal() else text


def split_names(text: str | None) -> list[str]:
    """Return the names in a list such as "a,b"; an empty list for None."""
    return [name.strip() for name in text.split(",")] if text is not None else []


def ranks_from(listed: str, count: int) -> set[int] | None:
    """Return the ranks in a list such as "0,3", all below `count`; None for "all"."""
    if listed.strip() == "all":
        return None
    words = [word.strip() for word in listed.split(",")]
    if not all(word.isdecimal() for word in words):
        raise ExperimentError(f"--log-ranks {listed} is not a list of ranks; write numbers such as 0,3, or all")
    ranks = {int(word) for word in words}
    if max(ranks) >= count:
        there = f"are ranks 0 to {count - 1}" if count > 1 else "is rank 0 alone"
        raise ExperimentError(f"--log-ranks {listed}: there is no rank {max(ranks)}; there {there}")
    return ranks


@dataclass(frozen=True)
class FieldOption:
    """The option of an experiment's field: of one value, or of several that are separated by commas."""

    kind: Any
    text: str
    panel: str
    names: Iterable[str] = ()
    """Values for the shell to complete."""
    several: str = ""
    """The help of commands in which the option takes several values; "" where none does."""
    short: str = ""
    parser: Callable[[str], Any] | None = None
    metavar: str | None = None

    def of_one(self, name: str) -> Any:
        option = typer.Option(
            f"--{name.replace('_', '-')}",
            *([self.short] if self.short else []),
            help=self.text,
            show_default=False,
            rich_help_panel=self.panel,
            autocompletion=complete_from(self.names),
            parser=self.parser,
            metavar=self.metavar,
        )
        return Annotated[self.kind | None, option]

    def of_several(self, name: str, panel: str, metavar: str) -> Any:
        option = typer.Option(
            f"--{name.replace('_', '-')}",
            help=self.several,
            show_default=False,
            rich_help_panel=panel,
            metavar=metavar,
            autocompletion=complete_list(self.names),
        )
        return Annotated[str | None, option]


FOLDS = "How the folds are made and trained"
KINDS = ("auto", "plain", "stratified", "group")
MODES = ("auto", "folds-over-workers", "data-and-folds", "fold-by-fold", "stacked")
DATA = f"{', '.join(SOURCES)}; a file (.csv, .tsv, .parquet, .npy, .npz) or folder of images; package.module:callable."
TARGET = "Stop when the first metric reaches this value: 0.99."
FIELDS: dict[str, FieldOption] = {
    "name": FieldOption(str, "A title for tables and plots.", EXPERIMENT),
    "model": FieldOption(
        str, f"{', '.join(MODELS)}, or package.module:callable.", EXPERIMENT, MODELS, "Models: lenet5,cnn."
    ),
    "data": FieldOption(str, DATA, EXPERIMENT, SOURCES, "Data sets: digits,mnist."),
    "epochs": FieldOption(int, "Passes over the training part.", EXPERIMENT, (), "Passes over the data: 1,2,4."),
    "batch_size": FieldOption(
        int, "Samples per step of one replica.", EXPERIMENT, (), "Samples per step of one replica: 16,64,256."
    ),
    "optimizer": FieldOption(str, f"{', '.join(OPTIMIZERS)}.", EXPERIMENT, OPTIMIZERS, "Optimizers: sgd,adam."),
    "lr": FieldOption(float, "Learning rate.", EXPERIMENT, (), "Learning rates: 0.1,0.01."),
    "precision": FieldOption(str, f"{', '.join(PRECISIONS)}.", EXPERIMENT, PRECISIONS, "Number formats: fp32,bf16."),
    "target": FieldOption(float, TARGET, EXPERIMENT),
    "seed": FieldOption(int, "Seed of the initial weights, the order of samples, and dropout.", EXPERIMENT),
    "workers": FieldOption(
        str,
        "Number of replicas that train in parallel, or auto: one per core.",
        PARALLEL,
        ("auto",),
        "Replicas: 1,2,4 or 1,2,4,...,64.",
        parser=read_steps,
        metavar="COUNT",
    ),
    "strategy": FieldOption(
        str, f"{', '.join(STRATEGIES)}.", PARALLEL, STRATEGIES, "Who averages with whom: allreduce,butterfly."
    ),
    "sync_every": FieldOption(
        str,
        "Steps between two rounds of averaging, or epoch.",
        PARALLEL,
        ("epoch",),
        "Steps between rounds, or epoch: 1,16,epoch.",
        parser=read_steps,
        metavar="STEPS",
    ),
    "device": FieldOption(str, f"{', '.join(DEVICES)}.", WHERE, DEVICES, "Devices: cpu,cuda."),
    "pin": FieldOption(str, "Cores for the workers: none, compact, scatter, or a list: 0,1,2,4.", WHERE, PINS),
    "threads": FieldOption(int, "Threads per worker.", WHERE, (), "Threads per worker: 1,2."),
    "loader_workers": FieldOption(int, "Processes that load batches.", WHERE, (), "Processes that load batches: 0,4."),
    "link": FieldOption(
        str,
        "The link between virtual nodes: 1gbe, 10gbe, 25gbe, 100gbe, infiniband, ...",
        WHERE,
        (),
        "Links between the nodes: 1gbe, 10gbe, 25gbe, 100gbe, infiniband, ...",
    ),
    "folds": FieldOption(
        int,
        "Number of folds. Default: 5.",
        FOLDS,
        (),
        "Folds of a cross-validation: 2,5,10.",
    ),
    "fold_kind": FieldOption(str, f"{', '.join(KINDS)}.", FOLDS, KINDS),
    "fold_repeats": FieldOption(int, "Repetitions, each with different folds.", FOLDS, short="--repeats"),
    "fold_mode": FieldOption(str, f"{', '.join(MODES)}.", FOLDS, MODES),
}
"""The options for fields; other fields are set by --set."""
Device = FIELDS["device"].of_one("device")
OF_FOLDS = ("folds", "fold_kind", "fold_repeats", "fold_mode")
OF_TRAINING = tuple(name for name in FIELDS if name not in ("loader_workers", "link", *OF_FOLDS))
"""The fields with an option in commands that train one experiment."""
GRIDDED = ("workers", "strategy", "sync_every", "link", "threads")
"""The fields with an option for several values in `simulate`."""
COMPARED = (
    *("workers", "strategy", "folds", "sync_every", "model", "data", "epochs", "batch_size", "optimizer", "lr"),
    *("precision", "loader_workers", "threads", "device"),
)
"""Those in `compare`."""
SWEPT = ("lr", "batch_size", "optimizer", "precision", "model", "data", "epochs", "workers", "strategy", "sync_every")
"""Those with an option for ranges and lists in `sweep`."""


def with_fields(
    *names: str, several: Iterable[str] = (), panel: str = "", metavar: str = "A,B,..."
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of fields, in place of its `**fields`; those in `several` take several values."""
    options = {name: FIELDS[name].of_several(name, panel, metavar) for name in several}
    options |= {name: FIELDS[name].of_one(name) for name in names}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        command.__signature__ = _signature(command, options, "fields")  # type: ignore[attr-defined]
        return command

    return decorate


def _signature(command: Callable[..., None], options: dict[str, Any], in_place_of: str) -> inspect.Signature:
    """Return the signature of a command with options in place of a parameter."""
    signature, kind = inspect.signature(command), inspect.Parameter.KEYWORD_ONLY
    kept = [parameter.replace(kind=kind) for name, parameter in signature.parameters.items() if name != in_place_of]
    added = [inspect.Parameter(name, kind, default=None, annotation=item) for name, item in options.items()]
    return signature.replace(parameters=[*kept, *added])


JOBS = "Jobs of Slurm or Ray"
EXECUTOR_OPTIONS: dict[str, FieldOption] = {
    "on": FieldOption(
        str, f"Where to run: local, {', '.join(EXECUTORS)}, or package.module:function.", WHERE, ("local", *EXECUTORS)
    ),
    "partition": FieldOption(str, "Slurm: the partition.", JOBS),
    "time": FieldOption(
        str, "Slurm: the time limit of a job, such as 0:30:00; longer runs continue in another job.", JOBS
    ),
    "account": FieldOption(str, "Slurm: the account to charge.", JOBS),
    "qos": FieldOption(str, "Slurm: the quality of service.", JOBS),
    "mem": FieldOption(str, "Slurm, Ray: the memory of a job, such as 4G.", JOBS),
}


@dataclass(frozen=True)
class Where:
    """Where runs go: an executor by name, and its options."""

    name: str = "local"
    options: dict[str, str] = dataclasses.field(default_factory=dict)

    def open(self) -> "Submitter | str":
        """Return the value for `on=`; this imports the packages of the executor."""
        from tenfold.executors import executor_named

        return executor_named(self.name, **self.options) or "local"


def with_executor(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of executors in place of its parameter `where`, which is None without any."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        options = {name: given.pop(name) for name in EXECUTOR_OPTIONS}
        chosen = {name: value for name, value in options.items() if value is not None}
        command(**given, where=Where(chosen.pop("on", "local"), chosen) if chosen else None)

    added = {name: option.of_one(name) for name, option in EXECUTOR_OPTIONS.items()}
    run.__signature__ = _signature(command, added, "where")  # type: ignore[attr-defined]
    return run


def experiment_from(
    file: Path | None, settings: list[str] | None, base: "Experiment | None" = None, **fields: Any
) -> "Experiment":
    """Return the experiment of a file, or another one, changed by the given options and then by the settings."""
    from tenfold.experiment import Experiment, nested

    changes = nested({key: value for key, value in fields.items() if value is not None})
    changes = nested(changes, dict(parse_setting(text) for text in settings or []))
    if base is not None:
        return base.replace(**changes)
    return Experiment.load(file, **changes) if file else Experiment(**changes)


def parse_setting(text: str) -> tuple[str, Any]:
    """Read "field=value" from the command line; the value as TOML would read it, else as text."""
    key, equals, value = text.partition("=")
    key, value = key.strip().replace("-", "_"), value.strip()
    if not equals or not key:
        raise ExperimentError(f"expected field=value, such as lr=0.1, got '{text}'")
    return key, parse_value(value)


def parse_value(text: str) -> Any:
    """Read a value as TOML would (or .1, 1.), else as text; what begins like a list or a table must be a valid one."""
    try:
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        if text[:1] in BRACKETS:
            raise ExperimentError(_unreadable(text)) from None
        return float(text) if SHORT_NUMBER.fullmatch(text) else text
    return read["value"] if len(read) == 1 else text


def _unreadable(text: str) -> str:
    kind, closing, example = BRACKETS[text[0]]
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    if not text.rstrip().endswith(closing):
        return (
            f"'{shown}' is an unfinished {kind}, it does not end with {closing}; write {example}, quoted for the shell"
        )
    return f"'{shown}' is not a valid {kind}; write {example}, with quotes around words"
