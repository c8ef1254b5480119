"""Signs of life of ranks that may be on other hosts, through a store that all of them reach."""

import pickle
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol

from tenfold.errors import WorkerLost
from tenfold.transport.memory.signals import is_alive

BEAT = 0.5
"""Seconds between two signs of life."""
SILENCE = 5.0
"""Seconds without one after which a rank is given up."""
LEFT = b"left"


class KeyValueStore(Protocol):
    """What torch's stores can do, as far as it is needed here; `set` and `get` wait for an answer."""

    def set(self, key: str, value: Any, /) -> None: ...  # noqa: D102
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...  # noqa: D102
    def compare_set(self, key: str, expected: Any, desired: Any, /) -> bytes: ...  # noqa: D102


class Watch:
    """Tells the others that this rank lives, and finds out when one of them does not.

    The first failure that anybody announces or notices is written down in the store, and stands for all.
    """

    def __init__(self, store: KeyValueStore, rank: int, names: list[str]) -> None:
        """Begin; `names` say for each rank where it runs. All ranks must have begun before anyone waits for another."""
        self._store = store
        self._rank = rank
        self._names = names
        self._beats = 0
        self._known: BaseException | None = None
        self._heard = threading.Event()
        self._over = threading.Event()
        self._looks = 0
        self._neighbours: Mapping[int, int] = {}
        self._beat()
        self._store.compare_set("failure", "", "")
        self._thread = threading.Thread(target=self._watch, daemon=True, name="tenfold-watch")

    def start(self, neighbours: Mapping[int, int]) -> None:
        """Watch the others, the processes of this host's ranks themselves: their death is seen at once.

        Who is not found by its process now is in another container of the same name, and watched as from afar.
        """
        self._neighbours = {rank: pid for rank, pid in neighbours.items() if is_alive(pid)}
        self._thread.start()

    def announce(self, error: BaseException) -> None:
        """Tell all that this rank gives up."""
        if self._known is None:
            self._decide(error)

    def trouble(self, within: float = 0.0) -> BaseException | None:
        """Return what has gone wrong; None if nothing is known of within so many seconds."""
        self._heard.wait(within)
        return self._known

    def look(self, seconds: float) -> None:
        """Raise what has gone wrong; called every so many seconds by who waits for another rank.

        That the store keeps silent is counted in looks, not seconds: a process that was stopped has not looked.
        """
        if self._known is not None:
            raise self._known
        self._looks += 1
        if self._looks * seconds > SILENCE + 2 * BEAT:
            self._learn(WorkerLost(0, f"{self._names[0]} has given no answer for {SILENCE:g} s: its host is cut off"))

    def stop(self, patience: float) -> None:
        """Say goodbye, as far as the store still answers; after a failure, wait for the others to have heard of it."""
        self._over.set()
        farewell = threading.Thread(target=self._leave, args=(patience,), daemon=True, name="tenfold-farewell")
        farewell.start()
        farewell.join(patience + 2 * BEAT)

    def _leave(self, patience: float) -> None:
        self._thread.join()
        try:
            self._store.set(f"beat/{self._rank}", LEFT)
            until = time.monotonic() + patience
            while self._known is not None and time.monotonic() < until:
                beats = self._store.multi_get([f"beat/{rank}" for rank in range(len(self._names))])
                lost = self._known.rank if isinstance(self._known, WorkerLost) else None
                if all(beat == LEFT or rank == lost for rank, beat in enumerate(beats)):
                    break
                time.sleep(0.1)
        except RuntimeError:  # the store went with its host
            return

    def _beat(self) -> None:
        self._beats += 1
        self._store.set(f"beat/{self._rank}", str(self._beats))

    def _watch(self) -> None:
        keys = [f"beat/{rank}" for rank in range(len(self._names))]
        latest: list[tuple[bytes, float]] = [(b"", time.monotonic())] * len(keys)
        looked = time.monotonic()
        while not self._over.wait(BEAT):
            try:
                self._beat()
                *beats, failure = self._store.multi_get([*keys, "failure"])
            except RuntimeError:  # whoever waits notices that nothing was heard
                continue
            now = time.monotonic()
            held_up, looked = now - looked > 4 * BEAT, now
            self._looks = 0
            if failure:
                self._learn(pickle.loads(failure))
            for rank, beat in enumerate(beats):
                if beat != latest[rank][0] or held_up:  # held up itself, this process knows nothing of the others
                    latest[rank] = (beat, now)
                elif beat != LEFT and now - latest[rank][1] > SILENCE:
                    self._lose(rank, f"{self._names[rank]} has given no sign of life for {SILENCE:g} s")
            for rank, pid in self._neighbours.items():
                if beats[rank] != LEFT and not is_alive(pid):
                    self._lose(rank, f"{self._names[rank]} died")

    def _lose(self, rank: int, sentence: str) -> None:
        if self._known is None:
            self._decide(WorkerLost(rank, sentence))

    def _decide(self, error: BaseException) -> None:
        try:
            stands = self._store.compare_set("failure", "", pickle.dumps(error))
        except RuntimeError:
            self._learn(error)
        else:
            self._learn(pickle.loads(stands))

    def _learn(self, error: BaseException) -> None:
        if self._known is None:
            self._known = error
            self._heard.set()
