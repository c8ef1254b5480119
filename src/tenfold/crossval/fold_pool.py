"""Folds over workers: processes that each train whole folds, as many side by side as there are cores."""

import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, cast

import torch

from tenfold.crossval.fold import Job, Setting, train_fold
from tenfold.crossval.layout import CoreSlots
from tenfold.engines.serial import Serial
from tenfold.errors import TenfoldError, WorkerLost
from tenfold.machine import affinity
from tenfold.runs import Event, Lifecycle
from tenfold.workers.snapshot import TaskSnapshot
from tenfold.workers.worker_pool import WorkerPool, live
from tenfold.workers.worker_process import WorkerConnection


@dataclass(frozen=True)
class FoldEnded:
    """A fold is done, well or not; with no fold, the process that sends it has only just begun."""

    index: int | None = None
    result: dict[str, Any] | None = None
    error: str = ""


Relay = Callable[[int, Event], None]
"""Is called with a fold's place and what happened in it."""
Done = Callable[[Job, dict[str, Any] | None, str], None]
"""Is called with a fold that is done, and its result or what went wrong."""


class Pool:
    """Trains jobs in processes; each takes as many desks as it has threads, and no desk is taken twice."""

    def __init__(self, setting: Setting, desks: CoreSlots, relay: Relay, done: Done) -> None:
        self.setting = setting
        self.desks = desks
        self.relay = relay
        self.done = done
        self.free = list(range(desks.count))
        self.waiting: list[Job] = []
        self.idle: list[int] = []
        self.busy: dict[int, tuple[Job, list[int]]] = {}
        """By process: its job, and the desks that it takes."""

    def run(self, jobs: Sequence[Job]) -> None:
        """Train all; a fold that fails, or whose process is lost, does not stop the others."""
        self.waiting = list(jobs)
        with closing(TaskSnapshot(self.setting.task)) as parcel:
            about = replace(self.setting, task=None)  # type: ignore[arg-type]
            crew = WorkerPool(min(self.desks.at_once, len(jobs)), work, (parcel, about))
            try:
                while self.waiting or self.busy:
                    try:
                        self._hear(crew)
                    except WorkerLost as lost:
                        self._lose(lost, crew)
                for rank in self.idle:
                    crew.send(rank, None)
                crew.join()
            finally:
                crew.end()

    def _hear(self, crew: WorkerPool) -> None:
        for rank, content in crew.messages():
            if isinstance(content, list):
                for event in content:
                    self.relay(event.worker, event)
            elif isinstance(content, BaseException):
                raise content
            else:
                self._take_back(rank, content)
                self._give_out(crew)
            if not self.waiting and not self.busy:
                return

    def _take_back(self, rank: int, ended: FoldEnded) -> None:
        self.idle.append(rank)
        if rank in self.busy:
            job, taken = self.busy.pop(rank)
            self.free = sorted([*self.free, *taken])
            self.done(job, ended.result, ended.error)

    def _give_out(self, crew: WorkerPool) -> None:
        """Start every job for which there is a process and room; of a node's jobs, one at a time."""
        for job in list(self.waiting):
            nodes = {other.place.node for other, _ in self.busy.values()} - {0}
            if not self.idle or job.threads > len(self.free) or job.place.node in nodes:
                continue
            rank, taken, self.free = self.idle.pop(0), self.free[: job.threads], self.free[job.threads :]
            cpus = tuple(self.desks.cpus[desk] for desk in taken) if self.desks.cpus else tuple(taken)
            job = replace(job, cores=cpus, pinned=bool(self.desks.cpus))
            self.waiting = [other for other in self.waiting if other.index != job.index]
            self.busy[rank] = job, taken
            crew.send(rank, job)

    def _lose(self, lost: WorkerLost, crew: WorkerPool) -> None:
        """Report the fold of a process that died, and put another in its place."""
        if lost.rank not in self.busy and lost.rank not in self.idle:
            raise lost  # it died before it could do anything, and so would the next
        if lost.rank in self.idle:
            self.idle.remove(lost.rank)
        else:
            self._take_back(lost.rank, FoldEnded(error=str(lost)))
            self.idle.remove(lost.rank)
        crew.replace(lost.rank)


def work(
    rank: int, connection: Connection, lifeline: Connection, beats: Any, parcel: TaskSnapshot, about: Setting
) -> None:
    """Train the folds that this process is given, one after another."""
    live(rank, lifeline, beats)
    post = WorkerConnection(connection)
    warnings.simplefilter("ignore")
    try:
        setting = replace(about, task=parcel.open())
        ended = FoldEnded()
        while (job := cast(Any, post.tell(cast(Any, ended)))) is not None:
            ended = _train(setting, job, post)
    except BaseException as error:
        post.fail(error)


def _train(setting: Setting, job: Job, post: WorkerConnection) -> FoldEnded:
    torch.set_num_threads(job.threads)
    if job.pinned:
        affinity.apply(job.cores)

    def listen(event: Event) -> None:
        post.emit(replace(event, worker=job.index))
        if isinstance(event, Lifecycle):  # what a fold has begun is known even if its process dies at once
            post.flush()

    try:
        return FoldEnded(job.index, train_fold(Serial(), setting, job, listen))
    except TenfoldError as error:
        return FoldEnded(job.index, error=str(error))
    except Exception as error:
        return FoldEnded(job.index, error="".join(traceback.format_exception_only(error)).strip())
