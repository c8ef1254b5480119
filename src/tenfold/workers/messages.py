"""The messages between a worker and its supervisor. All workers send messages of the same kind, one after another.

Where lost workers are replaced, the last messages below are sent in between, whenever the members change.
"""

from dataclasses import dataclass
from typing import Any

from tenfold.training.evaluation import EvaluatedShare


@dataclass(frozen=True, kw_only=True)
class EpochTrained:
    """An epoch is over: what this worker trained on, and what its share of the evaluation part says of the model."""

    epoch: int
    step: int
    seconds: float
    loss: float
    """Sum over samples."""
    samples: int
    share: EvaluatedShare | None
    right: float = 0.0
    """How many of its samples were classified right, of the `judged` whose class was compared."""
    judged: int = 0


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What this worker's share of the evaluation part says of the model, in the middle of an epoch."""

    epoch: int
    step: int
    seconds: float
    share: EvaluatedShare | None


@dataclass(frozen=True, kw_only=True)
class Saved:
    """This worker's checkpoint of an epoch is on disk, or could not be written."""

    epoch: int
    seconds: float
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """This worker is done: what its share of the test part says, its times, and from rank 0 the weights."""

    step: int
    seconds: float
    times: dict[str, float]
    bytes_moved: int
    share: EvaluatedShare | None
    weights: dict[str, Any] | None
    memory: int = 0
    """The most memory that the worker's process has had in use, in bytes."""


Message = Evaluated | EpochTrained | Saved | Finished


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do after an epoch: continue or stop; whether it was the best so far; whether it can be resumed from."""

    stop: bool = False
    best: bool = False
    saved: bool = True


@dataclass(frozen=True, kw_only=True)
class Paused:
    """This worker has paused because the members change, and reports how far it has got."""

    rounds: int
    """How many rounds of its training it has completed."""
    mixed: int
    """The last step, over the run, whose work is part of such a round."""
    passed: int
    """The last join point that it has passed, see `ElasticChannels.reach_join_point`."""


@dataclass(frozen=True, kw_only=True)
class EvaluationBegan:
    """This worker begins an evaluation, which would have to be repeated if others joined before it ends."""


@dataclass(frozen=True, kw_only=True)
class Ready:
    """This worker, which replaces a lost one, waits for its weights."""


@dataclass(frozen=True, kw_only=True)
class Handover:
    """A member's state, for the workers that join."""

    membership: int
    step: int
    """The last step that the state includes, over the run."""
    state: bytes


@dataclass(frozen=True, kw_only=True)
class Joining:
    """The workers that join, at the first join point that a member passes with a number of at least `point`."""

    workers: tuple[int, ...]
    partner: int
    """The member whose state they copy."""
    point: int


@dataclass(frozen=True, kw_only=True)
class Membership:
    """The workers that take part from now on."""

    number: int
    members: tuple[int, ...]
    rounds: int = 0
    """How many rounds the furthest of them has completed; the others do not take part in these any more."""
    joining: Joining | None = None


@dataclass(frozen=True, kw_only=True)
class Welcome:
    """What a worker that joins needs: the membership, and a partner's state."""

    membership: Membership
    state: bytes
