"""N workers as threads of one process, mixing in real shared memory: their replicas can be looked into."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from tenfold.engines.prepare import prepare
from tenfold.experiment import Experiment
from tenfold.runs.checkpoint import Resumption
from tenfold.runs.events import Event, Stopwatch
from tenfold.transport.segment import StopReason as Stop
from tenfold.workers.channels import Channels, SharedChannels
from tenfold.workers.coordinator import Coordinator, Decision, Message
from tenfold.workers.task import Resolved, Task
from tenfold.workers.worker import Worker

State = dict[str, Tensor]


def make_task(checkpoints: Path | None = None, **fields: Any) -> Task:
    task = prepare(Resolved.of(Experiment(**{"threads": 1, "oversubscribe": True} | fields)))
    return replace(task, checkpoints=checkpoints)


def state_of(worker: Worker) -> State:
    return {name: tensor.clone() for name, tensor in worker.replica.network.state_dict().items()}


class Threads:
    """Trains a task with one thread a worker; `before` and `after` hold every replica's state around each mixing."""

    def __init__(self, task: Task, *, watch: bool = False, resumption: Resumption | None = None) -> None:
        self.task = task
        self.events: list[Event] = []
        self.heard: list[list[Message]] = []
        self.before: list[list[State]] = [[] for _ in range(task.workers)]
        self.after: list[list[State]] = [[] for _ in range(task.workers)]
        self._errors: list[BaseException] = []
        self._meeting = threading.Barrier(task.workers)
        self._told: dict[int, Message] = {}
        stopwatch = Stopwatch()
        self.coordinator = Coordinator(task, stopwatch, self.events.append, resumption.manifest if resumption else None)
        self._shared = SharedChannels(
            task.workers,
            task.metadata.numel,
            strategy=task.strategy,
            gradient_numel=task.metadata.exchange_numel,
        )
        self.channels: list[Channels] = [self._shared.open(rank) for rank in range(task.workers)]
        locks = [threading.Lock() for _ in range(task.workers + task.strategy.center_parts)]
        for channels in self.channels:
            if channels.exchange_memory is not None:
                channels.exchange_memory.locks = locks  # those of the memory are for processes
        self.workers = [
            Worker(task, channels, stopwatch, self.events.append, self._teller(rank))
            for rank, channels in enumerate(self.channels)
        ]
        for rank, worker in enumerate(self.workers):
            if resumption is not None:
                worker.resume(resumption.state(rank))
            if watch:
                self._watch(rank, worker)

    def train(self) -> "Threads":
        threads = [threading.Thread(target=self._run, args=(worker,), daemon=True) for worker in self.workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self._shared.close()
        if self._errors:
            raise self._errors[0]
        assert not any(thread.is_alive() for thread in threads), "the workers hang"
        return self

    @property
    def weights(self) -> State:
        return self.coordinator.weights

    def rounds(self) -> list[tuple[list[State], list[State]]]:
        """All replicas' states before and after each step's mixing."""
        befores, afters = zip(*self.before, strict=True), zip(*self.after, strict=True)
        return [([*before], [*after]) for before, after in zip(befores, afters, strict=True)]

    def _run(self, worker: Worker) -> None:
        try:
            worker.train()
        except BaseException as error:
            self._errors.append(error)
            self._meeting.abort()
            self._shared.stop(Stop.ASKED, worker.number)

    def _teller(self, rank: int) -> Callable[[Message], Decision]:
        def report(message: Message) -> Decision:
            self._told[rank] = message
            if self._meeting.wait() == 0:
                self.heard.append([self._told[item] for item in sorted(self._told)])
                self._verdict = self.coordinator.decide(self.heard[-1])
            self._meeting.wait()
            return self._verdict

        return report

    def _watch(self, rank: int, worker: Worker) -> None:
        mix = worker.trainer.average_weights_if_due

        def watched(step: int) -> None:
            self.before[rank].append(state_of(worker))
            mix(step)
            self.after[rank].append(state_of(worker))

        worker.trainer.average_weights_if_due = watched  # type: ignore[method-assign]
