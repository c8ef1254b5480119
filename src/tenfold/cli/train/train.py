"""`tenfold train`: train a model and record the run."""

from typing import Any

from tenfold.cli import options
from tenfold.cli.output import following, launched_rank, print_run
from tenfold.cli.train.board_window import BoardWindow, ShowBoard


@options.with_fields
def train(
    file: options.File = None,
    settings: options.Set = None,
    runs: options.Runs = None,
    output: options.Report = None,
    log_ranks: options.LogRanks = None,
    log: options.Log = None,
    board: ShowBoard = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    **fields: Any,
) -> None:
    """Train a model and record the run.

    Examples: [cyan]tenfold train lenet.toml[/], [cyan]tenfold train --model mlp --data digits --epochs 5[/],
    [cyan]tenfold train lenet.toml --set lr=0.1 --set schedule=cosine[/],
    [cyan]tenfold train lenet.toml --workers 16 --target 0.99[/],
    [cyan]tenfold train lenet.toml --workers 4 --strategy butterfly --sync-every 16 --pin compact[/],
    [cyan]tenfold train lenet.toml -o report.html[/], [cyan]tenfold train lenet.toml --board[/],
    [cyan]torchrun --nproc-per-node 4 -m tenfold train lenet.toml[/]
    """
    experiment = options.experiment_from(file, settings, **fields)
    if experiment.division.workers > 1 and launched_rank() is None:
        from tenfold.workers.pool.fork_server import start_server

        start_server()  # early: it imports torch while this process does
    import tenfold
    from tenfold.launch.detect import detect_world
    from tenfold.report.live.rank_times import RankTimes
    from tenfold.report.live.run_progress import RunProgress

    quiet = quiet or as_json or bool(launched_rank())
    world = detect_world()
    count = world.size if world is not None else experiment.division.workers
    ranks = RankTimes(options.ranks_from(log_ranks, count)) if log_ranks else None
    with BoardWindow(runs, board) as window:
        with following(RunProgress(experiment, quiet=quiet, ranks=ranks), runs, quiet) as (listen, bar):
            run = tenfold.train(experiment, runs=runs, log=log, listen=window.watch(listen), fetching=bar)
        print_run(run, as_json, output)
