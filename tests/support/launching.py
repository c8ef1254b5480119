"""Starting the ranks of `launched_program` under a launcher, and reading what they told."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import launched_program
import psutil
from forked import programs_server, start_program

from tenfold.workers.fork_server import start_server

HERE = Path(__file__).parent
SOURCES = os.pathsep.join([str(HERE.parents[1] / "src"), str(HERE)])


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"} | more


def launch(
    command: Sequence[str], folder: Path, experiments: list[dict[str, Any]], within: float = 50
) -> subprocess.CompletedProcess[str]:
    """Let the ranks train the experiments; the launcher and all it started are gone afterwards."""
    (folder / "experiments.json").write_text(json.dumps(experiments))
    return run([*command, str(HERE / "launched_program.py"), str(folder)], folder, within)


def torchrun(size: int, target: Callable[..., None], *arguments: Any, max_restarts: int = 0) -> Exception | None:
    """Call a function on ranks under torchrun's agent in this process; return how they failed, if they did.

    The ranks are forked from a server that has torch; the command `torchrun` imports it in itself and in each rank.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=size,
        run_id="test",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=max_restarts,
        start_method="forkserver",
    )
    before = {
        number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    }
    try:
        with programs_server():
            start_server()
            elastic_launch(config, target)(*arguments)
    except ChildFailedError as error:
        return error
    finally:
        for number, handler in before.items():  # the agent leaves its own behind
            signal.signal(number, handler)
    return None


def torchrun_experiments(
    size: int, folder: Path, experiments: list[dict[str, Any]], max_restarts: int = 0
) -> Exception | None:
    """Let ranks under torchrun's agent train the experiments; return how they failed, if they did."""
    (folder / "experiments.json").write_text(json.dumps(experiments))
    return torchrun(size, launched_program.start, str(folder), max_restarts=max_restarts)


def start_ranks(
    size: int,
    folder: Path,
    experiments: list[dict[str, Any]],
    *,
    restarts: int = 0,
    not_waiting_for: Sequence[int] = (),
) -> list[int | None]:
    """Let ranks train the experiments as under torchrun, and return their exit codes; this process is the launcher.

    They are forked from a server that has torch. Those not waited for are killed when the others have ended.
    """
    (folder / "experiments.json").write_text(json.dumps(experiments))
    address = free_address()
    more = {"TORCHELASTIC_RUN_ID": "ranks", "TORCHELASTIC_RESTART_COUNT": str(restarts)}
    ranks = [start_rank(rank, size, size, address, folder, **more) for rank in range(size)]
    return end_ranks(ranks, not_waiting_for)


def start_rank(
    rank: int,
    size: int,
    local_size: int,
    address: tuple[str, int],
    folder: Path,
    namespace: str = "",
    command: Sequence[str] = (),
    **more: str,
) -> Any:
    """Fork one rank, which meets the others at the address of rank 0."""
    own = rank_environment(rank, size, local_size, address) | more
    return start_program(launched_program.start_rank, str(folder), own, namespace, tuple(command))


def rank_environment(rank: int, size: int, local_size: int, address: tuple[str, int]) -> dict[str, str]:
    """Return what torchrun would tell a rank."""
    meeting = {"MASTER_ADDR": address[0], "MASTER_PORT": str(address[1]), "HOST": f"host{rank // local_size}"}
    place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank % local_size, "LOCAL_WORLD_SIZE": local_size}
    return environment(**meeting, **{key: str(value) for key, value in place.items()})


def free_address() -> tuple[str, int]:
    """Return where ranks of this machine can meet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return "127.0.0.1", probe.getsockname()[1]


def end_ranks(ranks: list[Any], not_waiting_for: Sequence[int] = ()) -> list[int | None]:
    """Wait for ranks, kill those that are left, and return the exit codes."""
    for number, rank in enumerate(ranks):
        if number not in not_waiting_for:
            rank.join(60)
    codes = [rank.exitcode for rank in ranks]
    for rank in ranks:
        rank.kill()
        rank.join()
    return codes


def run(command: Sequence[str], folder: Path, within: float = 50) -> subprocess.CompletedProcess[str]:
    """Run a launcher to its end, or end it and its ranks."""
    with subprocess.Popen(
        command, env=environment(), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def told(folder: Path, number: int) -> list[dict[str, Any]]:
    """Return what each rank told of an experiment."""
    found = [json.loads(path.read_text()) for path in folder.glob(f"told-{number}-*.json")]
    return sorted(found, key=lambda one: int(one["rank"]))
