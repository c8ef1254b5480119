"""Ray: each job is a task, and a training has one actor per replica, on a cluster or a new Ray on this machine."""

import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from tenfold.common.imports import optional_module
from tenfold.errors import ExperimentError, MachineError, TrainingError
from tenfold.executors.jobs import Job, RankEnd, sees, train_rank
from tenfold.runs.events import Emit, EpochEnded, Event

RETRIES = 2
"""Number of times Ray reruns a job whose worker or node died."""
STARTS = 3
"""Maximum number of times the ranks of a training are started."""
SEND_SECONDS = 0.2
"""Interval at which rank 0 sends its events home."""
LEAVE_SECONDS = 15.0
"""Time that the other ranks have to record the loss of a rank."""
PLACED_SECONDS = 5.0
"""Time that ranks may wait for their cores before the user is told."""
CONNECT_SECONDS = 10.0
AUTHENTICATION = "RAY_AUTH_MODE"
"""The variable that lets a program send its token to a Ray that it joins by an address; by default it does not."""
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class RayExecutor(Executor):
    """Runs each job as a task of the Ray cluster at $RAY_ADDRESS, or of a new Ray on this machine."""

    def __init__(self, _job_cores: int = 1, *, mem: str = "") -> None:
        self._ray = optional_module("ray", 'on="ray"', "ray")
        address = os.environ.get("RAY_ADDRESS", "")
        self._starts = not self._ray.is_initialized()
        self._is_own = self._starts and not address
        self._memory = {"memory": read_bytes(mem)} if mem else {}
        if self._starts:
            _check_address(address)
            report_on_stderr()
            # without an address, Ray would wait for the last one that ran on this machine, which may be gone
            try:
                self._ray.init(address or "local", log_to_driver=False, include_dashboard=False, logging_level="error")
            except ConnectionError as error:
                token = "" if os.environ.get(AUTHENTICATION) else f"; if it wants a token, set {AUTHENTICATION}=token"
                raise MachineError(f"the Ray at $RAY_ADDRESS = {address} refused the connection{token}") from error
        self.trouble = ""
        """Why a job waits, if not for other jobs to end."""
        self._objects: dict[bytes, Any] = {}
        self._tasks: dict[tuple[int, int], Any] = {}
        """The remote functions, by the cores and GPUs that they request."""
        errors = self._ray.exceptions
        self.machine_losses = (errors.NodeDiedError, errors.LocalRayletDiedError)

    def submit(self, function: Callable[..., Any], /, job: Job, *rest: Any) -> "Future[Any]":  # type: ignore[override]
        """Run a job on the cores and GPUs that it needs; its Python objects are stored once for all jobs."""
        if job.objects not in self._objects:
            self._objects[job.objects] = self._ray.put(job.objects)
        # a Ray of this machine alone would wait forever for cores that it does not have
        count = min(job.cores, self._cpus()) if self._is_own else job.cores
        needs = count, self._gpus(job)
        if needs not in self._tasks:  # Ray keeps the order and the workers of calls of one function
            task = self._ray.remote(num_cpus=needs[0], num_gpus=needs[1], max_retries=RETRIES, **self._memory)
            self._tasks[needs] = task(_with_objects)
        largest = max((node["Resources"].get("CPU", 0) for node in self._ray.nodes() if node["Alive"]), default=0)
        if count > largest:
            self.trouble = (
                f"{job.label or 'a job'} waits for a node of Ray with {count} cores; the largest has {largest:g}"
            )
        small = replace(job, objects=b"")
        future: Future[Any] = self._tasks[needs].remote(function, small, self._objects[job.objects], *rest).future()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Stop a Ray that was started here, or leave the cluster that was joined here."""
        if self._starts:
            self._ray.shutdown()

    def _cpus(self) -> int:
        return int(self._ray.cluster_resources().get("CPU", 1))

    def _gpus(self, job: Job, count: int = 1) -> int:
        """Return the number of GPUs to request for each of `count` processes; Ray hides all other GPUs from them."""
        return max(job.gpus, int(job.any_gpu and self._ray.cluster_resources().get("GPU", 0) >= count))

    def train(self, job: Job, runs: Path, listen: Emit, notify: Callable[[str], None]) -> int:
        """Train with one actor per replica, record the run in a store that rank 0 sees, and return its number.

        If a rank is lost, all are started again and continue from the last checkpoint.
        """
        name = secrets.token_hex(8)
        for start in range(STARTS):
            end = self._train_once(job, runs, listen, notify, name, start)
            if end.lost and start + 1 < STARTS:
                notify(f"{end.error}; the ranks are started again, from the last checkpoint")
            elif end.error:
                raise TrainingError(end.error)
            else:
                break
        return end.run

    def _train_once(
        self, job: Job, runs: Path, listen: Emit, notify: Callable[[str], None], name: str, restarts: int
    ) -> RankEnd:
        ray, count = self._ray, job.read_experiment().parallel.workers
        cores = min(job.cores / count, self._cpus() / count) if self._is_own else job.cores / count
        cores = int(cores) if cores >= 1 else cores
        gpus = self._gpus(job, count)
        needs = {"CPU": cores, "GPU": gpus, **self._memory}
        needs = {resource: amount for resource, amount in needs.items() if amount}
        home = f"node:{ray.util.get_node_ip_address()}"
        here: dict[str, float] = next(
            (node["Resources"] for node in ray.nodes() if node["Alive"] and home in node["Resources"]), {}
        )
        first = needs | ({home: 0.001} if here.get("CPU", 0) >= cores else {})  # rank 0 records: at home, if it can
        group = ray.util.placement_group([first, *([needs] * (count - 1))], strategy="PACK")
        ranks: list[Any] = []
        try:
            if not group.wait(PLACED_SECONDS):
                notify(f"waiting for Ray to have {count} x {cores:g} cores free")
                ray.get(group.ready())
            mailbox = ray.remote(num_cpus=0)(Mailbox).remote()
            for rank in range(count):
                strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, rank)
                options = {"num_cpus": cores, "num_gpus": gpus, "scheduling_strategy": strategy, **self._memory}
                ranks.append(ray.remote(**options)(Rank).remote())
            places = ray.get([rank.place.remote() for rank in ranks])
            world = _variables(places) | {"TORCHELASTIC_RUN_ID": name, "TORCHELASTIC_RESTART_COUNT": str(restarts)}
            hosts = [host for host, _, _ in places]
            refs = []
            for rank, actor in enumerate(ranks):
                same = [other for other in range(count) if hosts[other] == hosts[rank]]
                own = {"RANK": rank, "LOCAL_RANK": same.index(rank), "LOCAL_WORLD_SIZE": len(same)}
                variables = world | {key: str(value) for key, value in own.items()}
                refs.append(actor.train.remote(job, str(runs), sys.argv, variables, mailbox if rank == 0 else None))
            return self._follow(refs, mailbox, listen)
        finally:
            for actor in ranks:
                ray.kill(actor)
            ray.util.remove_placement_group(group)

    def _follow(self, refs: list[Any], mailbox: Any, listen: Emit) -> RankEnd:
        """Pass on the events of rank 0 until all ranks have ended; return the outcome, or the first loss."""
        ray, pending, until = self._ray, list(refs), float("inf")
        ends: dict[int, RankEnd] = {}
        while pending and time.monotonic() < until:
            done, pending = ray.wait(pending, num_returns=len(pending), timeout=SEND_SECONDS)
            for event in ray.get(mailbox.take.remote()):
                listen(event)
            for ref in done:
                rank = refs.index(ref)
                try:
                    ends[rank] = ray.get(ref)
                except ray.exceptions.RayActorError:
                    ends[rank] = RankEnd(0, f"rank {rank} was lost with its process or its node", lost=True)
                if ends[rank].error:
                    until = min(until, time.monotonic() + LEAVE_SECONDS)
        lost = [end for end in ends.values() if end.lost]
        failed = [end for end in ends.values() if end.error]
        ended: list[RankEnd] = [*lost, *failed, ends.get(0, RankEnd(0, "rank 0 did not answer", lost=True))]
        return ended[0]


def report_on_stderr() -> None:
    """Let Ray report lost nodes and workers in a line on stderr; it prints pages on stdout, which may be JSON."""
    from ray._private import worker

    printed = getattr(worker, "print_to_stdstream", None)
    if printed is None or getattr(printed, "on_stderr", False):
        return

    def print_report(data: dict[str, Any], ignore_prefix: bool) -> None:
        if data.get("pid") == "raylet":
            data = data | {"is_err": True, "lines": [line.partition("\n")[0] for line in data["lines"]]}
        printed(data, ignore_prefix)

    print_report.on_stderr = True  # type: ignore[attr-defined]
    worker.print_to_stdstream = print_report


def _check_address(address: str) -> None:
    """Raise MachineError if nothing answers at "host:port"; Ray itself tries for minutes and then ends the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():  # "auto", or none
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise MachineError(f"no Ray answers at $RAY_ADDRESS = {address}: {error.strerror or error}") from None


class Mailbox:
    """An actor that stores the events of rank 0 until the submitting process fetches them."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def put(self, events: list[Event]) -> None:
        self._events += events

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events


class Rank:
    """An actor that trains one replica, as a process of torchrun would."""

    def place(self) -> tuple[str, str, int]:
        """Return the host of this process, its address, and a free port there."""
        ray = optional_module("ray", 'on="ray"', "ray")
        with socket.socket() as free:
            free.bind(("", 0))
            return socket.gethostname(), ray.util.get_node_ip_address(), int(free.getsockname()[1])

    def train(self, job: Job, runs: str, argv: list[str], variables: dict[str, str], mailbox: Any) -> RankEnd:
        """Train to the end, and send the events home if there is a mailbox, which rank 0 has."""
        if mailbox is not None and not sees(Path(job.kept_in).parent, job.token):
            return RankEnd(
                0,
                f"rank 0 runs on {socket.gethostname()}, which does not see the run store {runs}; --runs names another",
            )
        os.environ.update(variables)
        sys.argv = argv
        events: list[Event] = []
        sent = time.monotonic()

        def hear(event: Event) -> None:
            nonlocal sent
            events.append(event)
            if isinstance(event, EpochEnded) or time.monotonic() - sent > SEND_SECONDS:
                mailbox.put.remote(events[:])
                events.clear()
                sent = time.monotonic()

        end = train_rank(job, runs, hear if mailbox is not None else None)
        if events and mailbox is not None:
            optional_module("ray", 'on="ray"', "ray").get(mailbox.put.remote(events))
        return end


def _variables(places: list[tuple[str, str, int]]) -> dict[str, str]:
    _, address, port = places[0]
    return {"WORLD_SIZE": str(len(places)), "MASTER_ADDR": address, "MASTER_PORT": str(port)}


def _with_objects(function: Callable[..., Any], job: Job, objects: bytes, *rest: Any) -> Any:
    return function(replace(job, objects=objects), *rest)


def read_bytes(text: str) -> int:
    """Return the number of bytes of a size such as "4G"; without a unit, it is in MB, as in Slurm."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "M")
    if not number.isdecimal() or unit not in UNITS:
        raise ExperimentError(f"--mem {text} is not a size; write it as 500M or 4G")
    return int(number) * UNITS[unit]
