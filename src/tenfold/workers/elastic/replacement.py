"""Replacing workers that are lost while the others continue to train."""

from typing import Any

from tenfold.errors import WorkerLost
from tenfold.workers.channels import SharedChannels
from tenfold.workers.elastic.roster import Roster
from tenfold.workers.messages import EpochTrained, EvaluationBegan, Finished, Handover, Message, Paused, Ready
from tenfold.workers.pool.worker_pool import WorkerPool
from tenfold.workers.supervisor import Supervisor


class Replacement:
    """Pauses the members of a run when one is lost, starts another process in its place, and lets that one join.

    The others do not wait for the new process to start: it joins when it is ready.
    """

    def __init__(self, pool: WorkerPool, channels: SharedChannels, supervisor: Supervisor, limit: int) -> None:
        """Watch over a pool; `limit` is how often a worker may be replaced before it has completed an epoch."""
        self.roster = Roster(channels.workers)
        self._pool = pool
        self._channels = channels
        self._supervisor = supervisor
        self._limit = limit
        self._to_start: set[int] = set()
        self._evaluating: set[int] = set()
        """Members in an evaluation that would be repeated if others joined now."""
        self._losses = dict.fromkeys(range(channels.workers), 0)
        """How often each worker was lost since it last completed an epoch."""
        self._since_epoch_began = set(range(channels.workers))

    def lose(self, lost: WorkerLost) -> None:
        """Let the others continue without a worker; raise its error if it was lost too often or no other is left."""
        worker = lost.rank
        self._losses[worker] += 1
        self._since_epoch_began.discard(worker)
        if self._losses[worker] > self._limit:
            raise WorkerLost(
                worker,
                f"{lost}; worker {worker} was lost {self._losses[worker]} times without completing an epoch, "
                f"and machine.replacements = {self._limit}",
            )
        was_member = worker in self.roster.members
        if was_member and len(self.roster.members) == 1:
            raise lost
        self._pool.remove(worker)  # from here on it changes nothing in the shared memory
        self._evaluating.discard(worker)
        awaited = self.roster.lose(worker)
        self._to_start.add(worker)
        if was_member:
            self._supervisor.lose(lost, sorted(self.roster.members))
        if awaited:
            self._channels.ask_for(self.roster.change())
        self._proceed()

    def handle(self, worker: int, message: Any) -> bool:
        """Take a message that is about the members; return False for any other that is still worth an answer."""
        if isinstance(message, Paused):
            self._evaluating.discard(worker)
            self.roster.pause(worker, message)
        elif isinstance(message, EvaluationBegan):
            self._evaluating.add(worker)
        elif isinstance(message, Ready):
            self.roster.waiting.add(worker)
        elif isinstance(message, Handover):
            for joined, welcome in self.roster.hand_over(message).items():
                self._pool.send(joined, welcome)
                self._supervisor.join(joined, message.step, self._pool.processes[joined].pid)
        else:
            return self.roster.is_changing  # its sender has not noticed the change yet, and will send it again
        self._proceed()
        return True

    def invite(self) -> bool:
        """Make the members pause for workers that wait to join, unless they evaluate; return whether they pause."""
        if self._evaluating or not self.roster.can_change:
            return False
        self._channels.ask_for(self.roster.change())
        return True

    def note_answer(self, message: Message) -> None:
        """Note that the members have the answer to a message: their evaluation is over, and others may join."""
        self._evaluating.clear()
        if isinstance(message, Finished):
            for worker in set(self._pool.present) - self.roster.members:
                self._pool.remove(worker)
            return
        if isinstance(message, EpochTrained):
            self._forget_losses()
        self.invite()

    def _forget_losses(self) -> None:
        """Reset the counts of losses of workers that have trained for the whole epoch."""
        for worker in self._since_epoch_began:
            self._losses[worker] = 0
        self._since_epoch_began = set(self.roster.members)

    def _proceed(self) -> None:
        """Send the members the new membership once all have paused; only then may others use a lost one's memory."""
        if (membership := self.roster.decide()) is not None:
            self._supervisor.note_absence(self.roster.mixed)
            for member in membership.members:
                self._pool.send(member, membership)
        if not self.roster.is_changing:
            for worker in sorted(self._to_start):
                self._pool.replace(worker, joining=True)
            self._to_start.clear()
