"""`tenfold crossval`: train and validate a model on k folds."""

from typing import Annotated, Any

from tenfold.cli import options
from tenfold.cli.output import following, print_run
from tenfold.common.catalog import FOLD_KINDS, FOLD_MODES

FOLDS = "How the folds are made and trained"
KINDS, MODES = ("auto", *FOLD_KINDS), ("auto", *FOLD_MODES)

Folds = Annotated[
    int | None, options.field("folds", "Number of folds; each is the validation part once. Default: 5.", FOLDS)
]
Kind = Annotated[str | None, options.field("fold-kind", f"{', '.join(KINDS)}.", FOLDS, KINDS)]
Repeats = Annotated[int | None, options.field("fold-repeats", "Repetitions, each with different folds.", FOLDS)]
Mode = Annotated[
    str | None,
    options.field("fold-mode", f"{', '.join(MODES)}.", FOLDS, MODES),
]


@options.with_fields
def crossval(
    file: options.File = None,
    settings: options.Set = None,
    folds: Folds = None,
    fold_kind: Kind = None,
    fold_repeats: Repeats = None,
    fold_mode: Mode = None,
    runs: options.Runs = None,
    output: options.Report = None,
    log: options.Log = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    **fields: Any,
) -> None:
    """Train and validate a model on k folds in parallel, and record the cross-validation and each fold.

    Examples: [cyan]tenfold crossval lenet.toml --folds 10[/],
    [cyan]tenfold crossval lenet.toml --folds 10 --workers 4[/],
    [cyan]tenfold crossval --model mlp --data digits --folds 5 --fold-repeats 3[/],
    [cyan]tenfold crossval lenet.toml --workers 4 --fold-mode data-and-folds[/]
    """
    folding = {"folds": folds, "fold_kind": fold_kind, "fold_repeats": fold_repeats, "fold_mode": fold_mode}
    experiment = options.experiment_from(file, settings, **fields, **folding)
    from tenfold.workers.pool.fork_server import start_server

    start_server()  # early: it imports torch while this process does
    import tenfold
    from tenfold.report.live.fold_progress import FoldProgress

    quiet = quiet or as_json
    with following(FoldProgress(quiet=quiet), runs, quiet) as (listen, bar):
        done = tenfold.cross_validate(experiment, runs=runs, log=log, listen=listen, fetching=bar)
    print_run(done.run, as_json, output)
