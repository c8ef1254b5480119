"""What waves mean, message by message: the slow way that laws about waves are checked against."""

from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from tenfold.mixing import Round
from tenfold.mixing.round import Collective, Group, Wave, Waves


class Message(NamedTuple):
    """`nbytes` that travel from rank `src` to rank `dst`."""

    src: int
    dst: int
    nbytes: int
    adds: bool = False


Phase = tuple[Message, ...]
Phases = tuple[Phase, ...]


def phases_of(waves: Waves) -> Phases:
    """List the messages of each phase."""
    return tuple(phase for wave in waves for phase in _phases(wave))


def within(collective: Collective, group: Group, nbytes: int) -> Phases:
    """List what travels in one group, phase by phase; a lone member has nothing to send."""
    return phases_of(collective.waves(np.array([group]), nbytes)) if len(group) > 1 else ()


def messages(round_: Round, nbytes: int) -> Phases:
    """List what travels in a round, phase by phase."""
    plans = [phases_of(waves) for waves in round_.waves(nbytes)]
    return tuple(sum(side_by_side, ()) for side_by_side in zip_longest(*plans, fillvalue=()))


def _phases(wave: Wave) -> Phases:
    ends = list(zip(wave.src.ravel().tolist(), wave.dst.ravel().tolist(), strict=True))
    sizes = (np.roll(wave.nbytes, turn, axis=1).ravel().tolist() for turn in range(wave.times))
    return tuple(
        tuple(Message(*end, size, wave.adds) for end, size in zip(ends, phase, strict=True)) for phase in sizes
    )
