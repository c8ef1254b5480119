"""`tenfold crossval`: train and validate a model on k folds."""

from typing import Annotated

import typer

from tenfold.cli import options
from tenfold.cli.output import Interruptible, fetching, print_run
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


def crossval(
    context: typer.Context,
    file: options.File = None,
    settings: options.Set = None,
    folds: Folds = None,
    fold_kind: Kind = None,
    fold_repeats: Repeats = None,
    fold_mode: Mode = None,
    name: options.Name = None,
    model: options.Model = None,
    data: options.Data = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    optimizer: options.Optimizer = None,
    lr: options.Lr = None,
    target: options.Target = None,
    seed: options.Seed = None,
    workers: options.Workers = None,
    strategy: options.Strategy = None,
    sync_every: options.SyncEvery = None,
    device: options.Device = None,
    pin: options.Pin = None,
    threads: options.Threads = None,
    runs: options.Runs = None,
    output: options.Report = None,
    log: options.Log = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Train and validate a model on k folds in parallel, and record the cross-validation and each fold.

    Examples: [cyan]tenfold crossval lenet.toml --folds 10[/],
    [cyan]tenfold crossval lenet.toml --folds 10 --workers 4[/],
    [cyan]tenfold crossval --model mlp --data digits --folds 5 --fold-repeats 3[/],
    [cyan]tenfold crossval lenet.toml --workers 4 --fold-mode data-and-folds[/]
    """
    experiment = options.experiment_of(context.params)  # all fields above are read from `context.params`
    from tenfold.workers.pool.fork_server import start_server

    start_server()  # early: it imports torch while this process does
    import tenfold
    from tenfold.report.live.fold_progress import FoldProgress

    quiet = quiet or as_json
    with (
        Interruptible(runs) as interruptible,
        FoldProgress(quiet=quiet) as progress,
        fetching(quiet) as bar,
    ):
        done = tenfold.cross_validate(
            experiment, runs=runs, log=log, listen=interruptible.watch(progress.listen), fetching=bar
        )
    print_run(done.run, as_json, output)
