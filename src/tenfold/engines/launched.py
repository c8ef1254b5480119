"""The engine for ranks that torchrun, mpirun, srun or Ray started."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import psutil

from tenfold.common.imports import remember_named
from tenfold.engines.base import Engine, Outcome, RecordedRun, open_for_resume, train_recorded
from tenfold.engines.launched_rank import (
    EndedByLauncher,
    Orders,
    RankConnection,
    clear,
    describe_attributes,
    describe_differences,
    describe_layers,
    describe_methods,
    describe_software,
    describe_sources,
    describe_tensors,
    describe_values,
    ending_by_signal,
    find_differences,
    launch_name,
    own_device,
    require_same,
    require_same_values,
    scatter,
    watch_progress,
)
from tenfold.engines.prepare import (
    NEEDS_LAUNCHER,
    Notify,
    assign_cores,
    check_new_run,
    check_same_data,
    describe,
    is_launched,
    load_task,
)
from tenfold.errors import ExperimentError, StoreError, TrainingError, WorkerLost
from tenfold.experiment import Experiment
from tenfold.experiment.values import PythonObject
from tenfold.launchers import World
from tenfold.machine import cores
from tenfold.machine.metadata import module_digests
from tenfold.registry import SOURCES
from tenfold.runs import Store
from tenfold.runs.checkpoint import Resumption
from tenfold.runs.events import Emit, Stopwatch, Warned
from tenfold.runs.store import RemoteStore
from tenfold.training.replica import training_environment
from tenfold.transport.meeting import JoinedRank, join
from tenfold.workers.channels import Channels
from tenfold.workers.coordinator import Coordinator, Decision, LostWorker, Message, lost_in
from tenfold.workers.task import Resolved, Task, make_network
from tenfold.workers.worker import Worker

CLOCKS_DIFFER_BY = 5.0
"""Seconds, between hosts."""


def find_begun(store: Store, world: World, experiment: Experiment) -> dict[str, Any] | None:
    """Return the record of the unfinished run that this launch has started, if there is one.

    A later launch may have the same name, so the run must be younger than the launcher's process, except under Slurm:
    its names are job numbers, and a restarted job has new processes. When torchrun restarts the ranks because hosts
    join or leave, it does not count that as a restart.
    """
    name = launch_name(world)
    since = 0.0 if world.traits.requeues else psutil.Process(os.getppid()).create_time()
    wanted = experiment.model_dump(mode="json")
    ended = ("finished",) if world.restarts else ("finished", "failed")
    for run in reversed(store.records()):
        if run["problems"]:
            continue
        if run["metadata"].get("launch", {}).get("name") == name and run["created"] > since - CLOCKS_DIFFER_BY:
            before: int = run["experiment"]["parallel"]["workers"]
            wanted["parallel"]["workers"] = before
            if run["status"] in ended or run["experiment"] != wanted:
                return None
            if before != world.size and experiment.machine.on_failure == "end":
                raise ExperimentError(
                    f"run {run['id']} had {before} ranks, but {world.launcher} started {world.size}; "
                    f'start {before}, or set machine.on_failure = "continue"'
                )
            return dict(run)
    return None


def find_lost(record: dict[str, Any], resumption: Resumption | None, world: World) -> list[LostWorker]:
    """Return the lost worker if there are fewer ranks than before; the run's record may name it."""
    before = resumption.manifest["workers"] if resumption else record["experiment"]["parallel"]["workers"]
    if world.size >= before:
        return []
    why = record["error"].partition("\n")[0] or f"{world.launcher} started {world.size} ranks after {before}"
    rank = record["result"].get("lost_rank")
    return [LostWorker.of(WorkerLost(before - 1 if rank is None else rank, why), world.size, resumption)]


def assign_states(visible: Sequence[Sequence[int]]) -> list[int]:
    """Return, for each new rank, the saved rank whose state it loads, among those visible on its host.

    A rank takes its own state if visible, otherwise one that no other rank has taken, otherwise any.

        >>> assign_states([[0, 1], [3], [3]])
        [0, 3, 3]
    """
    if not all(visible):
        blind = next(rank for rank, ranks in enumerate(visible) if not ranks)
        raise StoreError(
            f"rank {blind} cannot see the checkpoint to resume from; keep the runs in a folder that all hosts share"
        )
    assigned: dict[int, int] = {rank: rank for rank, ranks in enumerate(visible) if rank in ranks}
    for rank, ranks in enumerate(visible):
        if rank not in assigned:
            assigned[rank] = next((rank for rank in ranks if rank not in assigned.values()), ranks[rank % len(ranks)])
    return [assigned[rank] for rank in range(len(visible))]


# Ranks that a launcher has started (torchrun, mpirun, srun), on one host or many.
#
# Every rank runs the same worker. Rank 0 also has the coordinator, and records; messages of the other ranks reach it
# when all ranks report, a few times per epoch.

REASON_SECONDS = 1.5
"""Seconds that a rank whose training was stopped waits for the reason."""


SAME_EVERYWHERE = "start every rank with the same arguments, files and packages"
SAME_DATA = 'give every rank the same data, or let rank 0 send them: data.distribute = "scatter"'
PLACEMENT = tuple(f"machine.{field}" for field in ("device", "threads", "pin", "oversubscribe", "engine"))
"""Where a rank computes: hosts may differ in it."""


class Launched(Engine):
    """Trains one replica in this process, one of a launcher's ranks."""

    name = "launched"
    needs_launcher = True
    trains_folds = False

    @classmethod
    def supports(cls, experiment: Experiment, world: World | None) -> str | None:
        if world is None:
            return f'machine.engine = "launched" {NEEDS_LAUNCHER}'
        parallel, continues = experiment.parallel, experiment.machine.on_failure == "continue"
        if continues and not world.traits.restarts_remaining and world.size > 1:
            return (
                'machine.on_failure = "continue" requires torchrun, which restarts the remaining ranks; '
                f'{world.launcher} does not: set it to "end"'
            )
        if continues and parallel.shards == "fractions":
            return (
                'machine.on_failure = "continue" divides the data again among the remaining ranks, but '
                f'parallel.shards = "fractions" sets the share of each of {parallel.workers}; use iid, or set '
                'machine.on_failure = "end"'
            )
        if parallel.workers not in (1, world.size) and not (continues and world.restarts):
            return (
                f"parallel.workers = {parallel.workers} in the experiment, but {world.launcher} has started "
                f"{world.size} ranks, each of which is a worker; start {parallel.workers} ranks, or leave workers unset"
            )
        if parallel.is_asynchronous:
            return (
                f'parallel.strategy = "{parallel.strategy}" needs memory that all workers share, which ranks do not '
                f"have; start it without {world.launcher}, or use a strategy with rounds such as butterfly"
            )
        return None

    @classmethod
    def is_usual(cls, experiment: Experiment, world: World | None) -> bool:
        return is_launched(experiment, world)

    @classmethod
    def create(cls, resolved: Resolved, _notify: Notify) -> Self:
        assert resolved.world is not None, "supports() has asked for a launcher"
        machine = resolved.experiment.machine
        return cls(resolved.world, machine.transport, machine.stall_after)

    def __init__(self, world: World, transport: Any = "auto", stall_after: float | None = None) -> None:
        self.world = world
        self._transport = transport
        self._stall_after = stall_after
        self._joined: JoinedRank | None = None
        self.lost: list[LostWorker] = []
        """The ranks that the launcher did not start again."""

    @property
    def joined(self) -> JoinedRank:
        """The connection to the other ranks, established on first use."""
        if self._joined is None:
            self._joined = join(self.world, self._transport, self._stall_after)
            if self._transport == "shared-memory" and len(self._joined.hosts) > 1:
                raise ExperimentError(
                    f'machine.transport = "shared-memory" needs all ranks on one host, but they run on '
                    f"{len(self._joined.hosts)}: {', '.join(dict.fromkeys(self._joined.names))}; use auto"
                )
        return self._joined

    @property
    def records(self) -> bool:
        return self.world.rank == 0

    @contextmanager
    def session(self) -> Iterator[None]:
        """Report an error in the block to the other ranks, and raise the first error that any rank reported."""
        try:
            with ending_by_signal(self.world.rank):
                yield
        except BaseException as error:
            first = self._report(error)
            if first is None or str(error) in str(first):
                raise
            raise first from None

    def _report(self, error: BaseException) -> BaseException | None:
        """Report an error to the other ranks, and return the first error that any rank reported.

        If training failed here only because another rank failed, that rank's error is about to arrive.
        """
        if self._joined is None:
            return None
        network = self._joined.network
        if isinstance(error, EndedByLauncher):
            network.check_local_processes()
        elif isinstance(error, TrainingError) and not isinstance(error, WorkerLost):
            network.failure(within=REASON_SECONDS)
        network.report_failure(error)
        return network.failure()

    def prepare(self, resolved: Resolved) -> Task:
        """Load the data, here or from rank 0, and divide the cores among the ranks of this host."""
        ranks = self.joined
        device = own_device(resolved.experiment.machine.device, self.world.local_rank)
        experiment = resolved.experiment.replace(device=str(device))
        resolved = replace(resolved, experiment=experiment)
        mine = cores.usable_cpus()
        everyone = ranks.network.all_gather(mine)
        host = next(host for host in ranks.hosts if self.world.rank in host)
        together = {cpu for rank in host for cpu in everyone[rank]}
        bound = set(mine) != together  # the launcher has already assigned the cores
        threads, pinned = assign_cores(experiment.machine, len(host), cores.budget(allowed=together))
        if bound:
            threads, pinned = min(threads, len(mine)), cores.NOT_PINNED
        if experiment.data.distribute == "each":
            return load_task(resolved, threads, pinned)
        on_cpu = replace(resolved, experiment=experiment.replace(device="cpu"))
        whole = load_task(on_cpu, threads, pinned) if self.records else None
        splits = scatter(ranks.network, whole).to(device)
        return Task.of(resolved, splits, threads, pinned)

    def _prepare_alike(self, resolved: Resolved, what: str) -> Task:
        """Return the task; raise ExperimentError on every rank if the ranks' tasks differ."""
        self._compare_experiments(resolved.experiment, what)
        task = self.prepare(resolved)
        self._compare_tasks(task)
        return task

    def _compare_experiments(self, experiment: Experiment, what: str) -> None:
        """Raise ExperimentError on every rank if ranks have different experiments or versions, before data are loaded.

        The device and cores of a rank and the path of a data file may differ; the data are compared later.
        """
        described = {"training": what} | describe_software()
        for section, fields in experiment.model_dump(mode="json").items():
            for field, value in fields.items() if isinstance(fields, dict) else ():
                described[f"{section}.{field}"] = json.dumps(value, sort_keys=True)
        for field in PLACEMENT:
            del described[field]
        name = experiment.data.name
        if experiment.data.distribute == "scatter" or (
            isinstance(name, str) and name not in SOURCES and ":" not in name
        ):
            del described["data.name"]
        require_same(self.joined.network, described, SAME_EVERYWHERE)

    def _compare_tasks(self, task: Task) -> None:
        """Raise ExperimentError on every rank if ranks have different data, networks or code, before the first step."""
        experiment, splits, network, ranks = task.experiment, task.splits, make_network(task), self.joined.network
        scattered = experiment.data.distribute == "scatter"
        named = [
            value
            for field, values in experiment.named_values.items()
            if field != "data" or not scattered
            for value in values
        ]
        described = {
            **describe_tensors(network),
            **describe_layers(network),
            **describe_sources([*(item.value for item in named if isinstance(item, PythonObject)), *network.modules()]),
            **{f"source code of {module}": digest for module, digest in module_digests(named).items()},
            **{f"samples for {name}": f"{len(part)}" for name, part in splits.parts.items()},
            "shape of a sample": f"{splits.shape}",
            "outputs": f"{splits.outputs}",
        }
        require_same(ranks, described, SAME_EVERYWHERE)
        objects = {
            f"{field} {value.name}": value.value
            for field, values in experiment.named_values.items()
            if field not in ("model", "data", "groups")  # their results are compared
            for value in values
            if isinstance(value, PythonObject)
        }
        values = describe_values(objects) | describe_attributes(network) | describe_methods(network)
        require_same_values(ranks, values, SAME_EVERYWHERE)
        if scattered:
            return
        fingerprint = splits.fingerprint()
        differences = find_differences(ranks, {"fingerprint of the data": fingerprint})
        # A dataset with its own random generator returns different samples each time it is read.
        if differences and all(ranks.all_gather(splits.fingerprint() == fingerprint)):
            raise ExperimentError(f"{describe_differences(differences)}; {SAME_DATA}")

    def train(
        self,
        resolved: Resolved,
        *,
        runs: str | Path | None,
        kind: str,
        stopwatch: Stopwatch,
        listen: Emit,
    ) -> RecordedRun:
        """Train with all ranks; after a restart by the launcher, continue the run that they had started."""
        experiment = resolved.experiment
        with self.session():
            task = self._prepare_alike(resolved, "a new run")
            check_new_run(task)
            if not self.records:
                remember_named(experiment.import_paths)
                return self._follow(task, experiment, stopwatch)
            store = Store(runs)
            may_have_begun = self.world.restarts or experiment.machine.on_failure == "continue"
            record = find_begun(store, self.world, experiment) if may_have_begun else None
            if record is not None:
                return self._continue(task, experiment, store, record, listen, force=True)
            number = store.create(experiment, kind=kind, metadata=describe(task) | self.metadata())
            outcome = train_recorded(self.run, task, store, number, stopwatch, listen)
            return self._dismiss(RecordedRun.finished(store, number, outcome, experiment))

    def resume(
        self, resolved: Resolved, store: Store, record: dict[str, Any], listen: Emit, *, force: bool = False
    ) -> RecordedRun:
        """Continue a run with all ranks, each of which has read the run's record."""
        experiment = resolved.experiment
        with self.session():
            task = self._prepare_alike(resolved, f"run {record['id']}")
            if not self.records:
                return self._follow(task, experiment, Stopwatch())
            return self._continue(task, experiment, store, record, listen, force=force)

    def _continue(
        self,
        task: Task,
        experiment: Experiment,
        store: Store,
        record: dict[str, Any],
        listen: Emit,
        *,
        force: bool = False,
    ) -> RecordedRun:
        """Continue a run on rank 0; `force` if this launch started it, because no other process then works on it."""
        check_same_data(record, task)
        stopwatch, resumption = open_for_resume(store, record, force=force)
        self.lost = find_lost(record, resumption, self.world)
        outcome = train_recorded(self.run, task, store, record["id"], stopwatch, listen, resumption)
        return self._dismiss(RecordedRun.finished(store, record["id"], outcome, experiment))

    def _dismiss(self, finished: RecordedRun) -> RecordedRun:
        """Send the other ranks the record of the finished run, from rank 0."""
        whole = finished.store.find(finished.record["id"]) | {"result": finished.outcome.result}
        self.joined.network.broadcast((str(finished.store.folder), whole))
        return finished

    def _follow(self, task: Task, experiment: Experiment, stopwatch: Stopwatch) -> RecordedRun:
        """Train on a rank that does not record, and return the run that rank 0 recorded."""
        (folder, record), weights = self.follow(task, stopwatch)
        return RecordedRun(RemoteStore(folder), record, Outcome(record["result"], weights), experiment)

    def metadata(self) -> dict[str, Any]:
        """Return the hosts of the ranks, and their transport."""
        ranks = self.joined
        shares = self._transport in ("auto", "shared-memory")
        return {
            "launch": {
                "launcher": self.world.launcher,
                "name": launch_name(self.world),
                "hosts": {ranks.names[host[0]]: list(host) for host in ranks.hosts},
                "between_hosts": ranks.network.name,
                "within_hosts": "shared-memory" if shares else ranks.network.name,
            }
        }

    def run(self, task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None = None) -> Outcome:
        manifest = resumption.manifest if resumption else None
        with self.session():
            self.joined.network.barrier()
            self.joined.network.broadcast(Orders(task.checkpoints, manifest, stopwatch.now()))
            resumption = self._resumption(task, manifest)
            coordinator = Coordinator(task, stopwatch, emit, manifest, [*lost_in(manifest or {}), *self.lost])
            for worker in self.lost:
                emit(worker.event(stopwatch))
            coordinator.start(resumed=resumption is not None)
            self._work(task, stopwatch, emit, resumption, coordinator)
        return Outcome.of(coordinator)

    def follow(self, task: Task, stopwatch: Stopwatch) -> tuple[Any, dict[str, Any]]:
        """Train to the end on a rank that does not record; return rank 0's final message, and the weights."""
        network = self.joined.network
        network.barrier()
        orders: Orders = network.broadcast()
        stopwatch.origin = perf_counter() - orders.now
        task = replace(task, checkpoints=orders.checkpoints)
        resumption = self._resumption(task, orders.manifest)
        weights = self._work(task, stopwatch, None, resumption, None)
        last_word = network.broadcast()
        if orders.checkpoints is not None and self.joined.names[self.world.rank] != self.joined.names[0]:
            clear(orders.checkpoints, self.world.rank)
        return last_word, weights

    def _resumption(self, task: Task, manifest: dict[str, Any] | None) -> Resumption | None:
        """Return the saved state from which this rank continues; if ranks may be lost, it is one found on its host."""
        if task.checkpoints is None or manifest is None:
            return None
        if task.experiment.machine.on_failure == "continue":
            seen = self.joined.network.all_gather(Resumption(task.checkpoints, manifest).visible())
            manifest = manifest | {"ranks": assign_states(seen)}
        return Resumption(task.checkpoints, manifest)

    def _work(
        self,
        task: Task,
        stopwatch: Stopwatch,
        emit: Emit | None,
        resumption: Resumption | None,
        coordinator: Coordinator | None,
    ) -> dict[str, Any]:
        """Train this rank's replica, and return the weights of the mean of all."""
        post = RankConnection(self.joined.network, emit, coordinator, task.checkpoints)
        cpus, precision = task.cores.cpus(self.world.local_rank), task.experiment.training.precision
        with training_environment(task.threads, precision, cpus) as trouble:
            if trouble:
                post.emit(Warned(at=stopwatch.now(), text=trouble, worker=self.world.rank, concerns_worker=True))
            channels = self._channels(task)
            stalls = watch_progress(self.world, self.joined.network, task.experiment.machine.stall_after)
            with channels.gradient_transport, channels.transport, self.session(), stalls as progress:

                def report(message: Message) -> Decision:
                    with progress.allow_more_time():  # rank 0 evaluates and saves meanwhile
                        return post.report(message)

                with progress.allow_more_time():
                    worker = Worker(task, channels, stopwatch, post.emit, report, progress)
                    if resumption is not None:
                        worker.resume(resumption.state(self.world.rank))
                    else:
                        channels.transport.broadcast()  # initial weights of a user's network may differ between ranks
                worker.train()
            return worker.final_weights()

    def _channels(self, task: Task) -> Channels:
        share, metadata = self._transport in ("auto", "shared-memory"), task.metadata
        exchanged = metadata.exchange_numel if task.parallel.needs_gradient_buffer else 1
        transport, gradient_transport = (
            self.joined.transport(numel, metadata.dtype, task.device, share_memory=share)
            for numel in (metadata.numel, exchanged)
        )
        return Channels(transport, gradient_transport)
