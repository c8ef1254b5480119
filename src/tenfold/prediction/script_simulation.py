"""Run any torch.distributed script on a virtual cluster: the parent process of its ranks.

Every rank is a process of the script, with the variables that torchrun would set (`script_rank.py`). The ranks share
this machine's cores, but their times are the cluster's. This module starts, watches and ends them, and turns their
counts into the result of a run.
"""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from itertools import accumulate
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any, Self, Unpack

import numpy as np

from tenfold.cluster.cluster import HERE, Cluster, cluster_of
from tenfold.cluster.time_prediction import prediction_interval
from tenfold.engines.base import Outcome
from tenfold.errors import ExperimentError, MachineError, TrainingError
from tenfold.experiment import Experiment
from tenfold.experiment.field_types import Fields
from tenfold.experiment.values import UnrecordedObject
from tenfold.machine import cores
from tenfold.machine.cores import format_bytes
from tenfold.machine.metadata import collect_metadata, file_digest, origin
from tenfold.prediction import SCRIPT_PLAN
from tenfold.runs.events import Emit, Span, Stopwatch, Warned

WARM_UP_STEPS, MEASURED_STEPS = 10, 40
"""With `--only-time`: the steps until step times are steady, and the steps from which the rest is extrapolated."""
MODEL_ERROR = 0.11
"""Relative error of predictions for scripts whose step times do not vary: with it, the intervals of 80% hold 20 of the
25 measured times in docs/simulate-a-script.md. `benchmarks/script_simulation.py` prints it."""
BLOCKS = 10
"""Parts of a run whose step times are compared with each other, for the interval."""
RANK_BYTES = 250 << 20
"""Minimum memory of a process that has imported torch and trains a model."""
LEAST_FREE = 0.03
"""Share of the memory that must stay free."""
END_SECONDS = 5.0
PYTHON = [sys.executable, "-P"]
"""Runs Python without the current folder in the import path, as for a script in another folder."""
Say = Callable[[int, str], None]


@dataclass(frozen=True)
class Script:
    """A script, its arguments, and the virtual cluster that it runs on."""

    path: Path
    """The file that is run."""
    arguments: tuple[str, ...]
    experiment: Experiment
    """Its workers, threads, link or cluster, and seed; the script and its arguments replace model and data."""
    only_time: bool = False
    module: str | None = None
    """The name of the module if it is run with `python -m`."""

    @classmethod
    def of(
        cls,
        script: str | Path,
        arguments: Sequence[str],
        *,
        module: bool = False,
        only_time: bool = False,
        **fields: Unpack[Fields],
    ) -> Self:
        """Return a script, or the module of this name, with the fields of an experiment that apply to it."""
        path = find_module(str(script)) if module else Path(script)
        title = str(script) if module else path.name
        inside = {"model": title, "data": shlex.join(arguments) or "no arguments"}
        named: dict[str, Any] = {field: UnrecordedObject(text) for field, text in inside.items()}
        experiment = Experiment(engine="virtual", **{"name": title} | named | dict(fields))
        return cls(path, tuple(arguments), experiment, only_time, title if module else None)

    def __post_init__(self) -> None:
        if not self.path.is_file():
            raise ExperimentError(f"there is no script {self.path}")
        _ = self.cluster

    @property
    def name(self) -> str:
        return self.module or self.path.name

    @property
    def workers(self) -> int:
        return self.experiment.parallel.workers

    @property
    def cluster(self) -> Cluster:
        cluster = cluster_of(self.experiment)
        if cluster is HERE:
            raise ExperimentError(
                'cluster = "here" has only the costs of averaging, not of a script\'s operations; set the link '
                "between the ranks, for example --link shared-memory"
            )
        for group in cluster.groups:
            if group.step_seconds is not None or group.profile is not None:
                raise ExperimentError(
                    f"group '{group.name}' of the cluster has step_seconds or a profile, but a script's steps "
                    "are measured while it runs; set the group's speed instead"
                )
        return cluster

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of a new run: machine, packages, command line, and the script."""
        machine = collect_metadata()
        script = {
            "path": str(self.path),
            "module": self.module,
            "arguments": list(self.arguments),
            "digest": file_digest(self.path),
        }
        return {
            "machine": machine,
            "packages": machine.pop("packages"),
            **origin(self.experiment),
            "script": script,
        }

    def run(self, stopwatch: Stopwatch, emit: Emit, say: Say) -> Outcome:
        """Run all ranks to the end; `say` is called with every line that a rank prints."""
        began = stopwatch.now()
        with tempfile.TemporaryDirectory(prefix="tenfold-script-") as folder:
            records = run_ranks(self, Path(folder), say)
        for rank, record in enumerate(records):
            for kind, at, seconds in record["spans"]:
                emit(Span(at=at, kind=kind, seconds=seconds, worker=rank))
        result = self._result(records)
        for text in result["warnings"]:
            emit(Warned(at=stopwatch.now(), text=text))
        return Outcome(result | {"simulated_in": stopwatch.now() - began}, {})

    def _result(self, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the predicted times of a run, from the counts of its ranks."""
        seconds = max(record["seconds"] for record in records)
        scale, reasons, steps = 1.0, [], len(records[0]["step_ends"])
        if self.only_time and steps == self.stop_after:
            total, scale, steps, reason = self._extrapolated(records[0], seconds)
            seconds, reasons = total, [reason]
        ranks = [{kind: scale * time for kind, time in record["times"].items()} for record in records]
        once = [_computed_once(record) for record in records]
        computed = float(np.mean(once)) + sum(rank["compute"] for rank in ranks) - sum(once)
        operations = sum_operations(records, scale)
        alone = {"baseline_seconds": computed, "speedup": computed / seconds} if self.workers > 1 else {}
        reasons.append(
            "The time begins with the first process group; before it, each rank computed "
            f"{np.mean([record['start'] for record in records]):.2g} s (imports, data)."
        )
        if alone:
            reasons.append(
                "The time of one rank is the sum of what all ranks computed; what each did once, before the first step "
                f"({np.mean(once):.2g} s), counts once."
            )
        if reads := max(record["clock_reads"] for record in records):
            reasons.append(f"The script read the clock {reads:,} times, and was shown the virtual one.")
        return {
            "clock": "predicted",
            "seconds": seconds,
            "interval": list(prediction_interval([seconds], np.hypot(MODEL_ERROR, _step_error(records[0])))),
            "times": {kind: float(np.mean([rank[kind] for rank in ranks])) for kind in ranks[0]},
            "ranks": ranks,
            "operations": operations,
            "workers": self.workers,
            "threads": self.threads,
            "steps": steps,
            "cpu_seconds": sum(record["cpu"] - record["start"] for record in records),
            "peak_memory": [record["memory"] for record in records],
            "reasons": reasons,
            "warnings": _warnings(records),
            **alone,
        }

    @property
    def threads(self) -> int:
        """The threads of each rank, by default the number that torchrun would set."""
        return self.experiment.machine.threads or 1

    @property
    def stop_after(self) -> int | None:
        """The step after which the ranks end, if only the time is requested."""
        return WARM_UP_STEPS + MEASURED_STEPS if self.only_time else None

    def _extrapolated(self, record: dict[str, Any], seconds: float) -> tuple[float, float, int, str]:
        """Return the time of all steps, its ratio to `seconds`, the number of steps, and how it was determined."""
        per_step = (record["step_ends"][-1] - record["step_ends"][WARM_UP_STEPS - 1]) / MEASURED_STEPS
        epochs, per_epoch = epochs_in(self.arguments), record["steps_per_epoch"]
        if per_epoch is None:
            reason = f"{self.stop_after} steps were run, {1e3 * per_step:.3g} ms each; how many there are is not known."
            return seconds, 1.0, len(record["step_ends"]), reason
        steps = per_epoch * (epochs or 1)
        total = seconds + max(0, steps - len(record["step_ends"])) * per_step
        which = f"{epochs} epochs, as the arguments say" if epochs else "1 epoch, as the arguments name no number"
        reason = (
            f"Extrapolated from {MEASURED_STEPS} steps, after {WARM_UP_STEPS} others, to {steps:,}: a DataLoader of "
            f"{per_epoch:,} batches and {which}; evaluation and saving are not included."
        )
        return total, total / seconds, steps, reason


def find_module(name: str) -> Path:
    """Return the file that `python -m` would run for a module, without importing its package."""
    spec = _find_spec(name) if all(name.split(".")) else None
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _find_spec(f"{name}.__main__")
    if spec is None or not spec.has_location:
        raise ExperimentError(
            f"there is no module {name} that Python can run, neither in this folder nor among the installed packages"
        )
    return Path(str(spec.origin))


def _find_spec(name: str) -> ModuleSpec | None:
    places: Any = [str(Path.cwd()), *sys.path]
    spec = None
    for full_name in accumulate(name.split("."), "{}.{}".format):
        found = (finder.find_spec(full_name, places) for finder in sys.meta_path)
        spec = next(filter(None, found), None) if places is not None else None
        places = spec.submodule_search_locations if spec is not None else None
    return spec


def epochs_in(arguments: Sequence[str]) -> int | None:
    """Return the number that an argument such as `--epochs 3` or `--max_epochs=3` gives."""
    match = re.search(r"(?:^| )--?[\w-]*epochs?[ =](\d+)\b", " ".join(arguments))
    return int(match[1]) if match else None


def sum_operations(records: Sequence[dict[str, Any]], scale: float) -> dict[str, dict[str, float]]:
    """Return the mean over the ranks for each kind of operation, most exposed time first."""
    names = {name for record in records for name in record["operations"]}
    totals = {
        name: {
            key: scale * float(np.mean([record["operations"].get(name, {}).get(key, 0) for record in records]))
            for key in ("count", "nbytes", "seconds", "exposed")
        }
        for name in names
    }
    return dict(sorted(totals.items(), key=lambda item: -item[1]["exposed"]))


def _computed_once(record: dict[str, Any]) -> float:
    """Return a rank's one-time seconds of computing: DDP's construction and the extra time of the first step."""
    later = len(record["step_ends"]) - 1
    if later < 1:
        return 0.0
    first, computed = float(record["first_step_compute"]), float(record["times"]["compute"])
    return max(0.0, first - (computed - first) / later)


def _step_error(record: dict[str, Any]) -> float:
    """Return the relative standard error of the mean step time, from the means of consecutive parts of the run."""
    ends = record["step_ends"][WARM_UP_STEPS:]
    if len(ends) < 2 * BLOCKS:
        return 0.0
    marks = np.array(ends)[np.linspace(0, len(ends) - 1, BLOCKS + 1).astype(int)]
    parts = np.diff(marks) / np.diff(np.linspace(0, len(ends) - 1, BLOCKS + 1).astype(int))
    return float(parts.std(ddof=1) / parts.mean() / np.sqrt(BLOCKS))


def _warnings(records: Sequence[dict[str, Any]]) -> list[str]:
    computed = max(record["times"]["compute"] for record in records)
    asleep, children = (max(record[key] for record in records) for key in ("asleep", "children"))
    warnings_found = []
    if asleep > 0.02 * computed + 0.2:
        warnings_found.append(
            f"a rank slept or waited {asleep:.2g} s for files or other processes, which is not part of the predicted "
            "time"
        )
    if children > 0.02 * computed + 0.2:
        warnings_found.append(
            f"other processes of a rank, such as those of a DataLoader, computed {children:.2g} s, which is not part "
            "of the predicted time: their node is taken to have cores for them"
        )
    return warnings_found


def run_ranks(script: Script, folder: Path, say: Say) -> list[dict[str, Any]]:
    workers, slots = script.workers, max(1, cores.budget() // script.threads)
    needed, free = workers * RANK_BYTES, cores.free_memory()
    if needed > free:
        raise MachineError(
            f"{workers} ranks need at least {format_bytes(needed)} of memory, but {format_bytes(free)} are free; use "
            "fewer workers"
        )
    plan = {
        "script": str(script.path.absolute()),
        "module": script.module,
        "arguments": script.arguments,
        "cluster": script.cluster.model_dump(mode="json", exclude_none=True),
        "workers": workers,
        "seed": script.experiment.training.seed,
        "stop_after": script.stop_after,
    }
    (folder / SCRIPT_PLAN).write_text(json.dumps(plan))
    os.mkfifo(folder / "cores", 0o600)
    pipe = os.open(folder / "cores", os.O_RDWR)
    os.write(pipe, b"c" * min(slots, workers))
    try:
        with _started(script, folder, say) as ranks:
            _watch(ranks, script.name)
    finally:
        os.close(pipe)
    files = [folder / f"rank-{rank}.json" for rank in range(workers)]
    missing = next((rank for rank, path in enumerate(files) if not path.exists()), None)
    if missing is not None:
        raise ExperimentError(
            f"rank {missing} of {script.name} created no process group, so there is nothing to simulate; the script "
            "should call torch.distributed.init_process_group, itself or in a library"
        )
    return [json.loads(path.read_text()) for path in files]


class RankProcess:
    """A rank's process, and the last lines it has printed."""

    def __init__(self, rank: int, folder: Path, variables: dict[str, str], say: Say) -> None:
        self.rank = rank
        self.process = subprocess.Popen(
            [*PYTHON, "-m", "tenfold.prediction.script_rank", str(folder)],
            env=os.environ | variables | {"RANK": str(rank), "LOCAL_RANK": str(rank), "ROLE_RANK": str(rank)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            process_group=0,  # Ctrl-C goes to the parent, which ends all ranks
        )
        self.lines: deque[str] = deque(maxlen=30)
        self._reader = Thread(target=self._read, args=(say,), daemon=True)
        self._reader.start()

    def _read(self, say: Say) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            say(self.rank, self.lines[-1])

    def end(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def last_line(self) -> str:
        """Return the last non-empty line, after all output has been read."""
        self._reader.join(1.0)
        last = next((line.strip() for line in reversed(self.lines) if line.strip()), "without a message")
        return last.removeprefix(f"[rank{self.rank}]: ")


@contextmanager
def _started(script: Script, folder: Path, say: Say) -> Iterator[list[RankProcess]]:
    """Start the ranks as torchrun would, and end them after the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    workers = str(script.workers)
    variables = {
        "WORLD_SIZE": workers,
        "LOCAL_WORLD_SIZE": workers,
        "ROLE_WORLD_SIZE": workers,
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": folder.name,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "OMP_NUM_THREADS": str(script.threads),
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONUNBUFFERED": "1",
    }
    ranks: list[RankProcess] = []
    try:
        for rank in range(script.workers):
            ranks += [RankProcess(rank, folder, variables, say)]
        yield ranks
    finally:
        for each in ranks:
            each.end(signal.SIGTERM if each.process.poll() is None else signal.SIGKILL)
        until = monotonic() + END_SECONDS
        while any(each.process.poll() is None for each in ranks) and monotonic() < until:
            sleep(0.02)
        for each in ranks:
            each.end(signal.SIGKILL)
            each.process.wait()
            each.last_line()


def _watch(ranks: Sequence[RankProcess], name: str) -> None:
    """Wait for all ranks; raise an error if one fails, or if memory runs out."""
    total = cores.free_memory()
    while any(each.process.poll() is None for each in ranks):
        sleep(0.05)
        failed = next((each for each in ranks if each.process.poll()), None)
        if failed is not None:
            break
        if cores.free_memory() < LEAST_FREE * total:
            raise MachineError(
                f"out of memory: {len(ranks)} ranks of {name} do not fit into {format_bytes(total)}, the memory that "
                "was free; use fewer workers"
            )
    failed = next((each for each in ranks if each.process.poll()), None)
    if failed is None:
        return
    code = failed.process.returncode
    how = f"was killed by signal {-code}" if code < 0 else "failed" if code == 1 else f"exited with code {code}"
    text = failed.last_line()
    hint = ""
    if re.search("cuda|nvidia", text, re.IGNORECASE):
        hint = "; GPUs cannot be simulated: let the script use the CPU"
    raise TrainingError(f"rank {failed.rank} of {name} {how}: {text}{hint}")
