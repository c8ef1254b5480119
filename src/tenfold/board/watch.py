"""What the board knows of single runs: their measurements, read as they are recorded and kept for the next request."""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tenfold.api.open_run import load_model
from tenfold.report.curves import Curves
from tenfold.report.lanes import Lanes
from tenfold.report.pages.figures import describe_figure
from tenfold.runs import Run, Store
from tenfold.runs.storage.follower import Follower

MOST_RUNS = 64
"""The most runs that are kept in memory; the least recently used one is dropped first."""
PLOT_COLUMNS = 700
"""The approximate width of a plot in pixels."""


class Watched:
    """The measurements of one run so far."""

    def __init__(self, number: int, follower: Follower) -> None:
        self.number = number
        self.lock = threading.Lock()
        self._follower = follower
        self._forget()

    def _forget(self) -> None:
        self.curves, self.lanes = Curves(), Lanes()
        self.cursor = 0
        self.repeated = self._follower.repeated(self.number)

    def update(self) -> None:
        """Read what is new; everything, where epochs are being repeated."""
        if self._follower.repeated(self.number) != self.repeated:
            self._forget()
        events, self.cursor = self._follower.events(self.number, self.cursor)
        self.curves.add(events)
        self.lanes.add(events)

    @property
    def position(self) -> str:
        """What a page sends to get what comes after: the last event, and how many do not count any more."""
        return f"{self.cursor}.{self.repeated}"

    def since(self, position: str) -> dict[str, Any] | None:
        """Return what is new after a position; "again" says that everything has to be read again."""
        cursor, _, repeated = position.partition(".")
        if repeated != str(self.repeated) or int(cursor) > self.cursor:
            return {"again": True, "position": self.position}
        if int(cursor) == self.cursor:
            return None
        return {
            "curves": self.curves.since(int(cursor), PLOT_COLUMNS),
            "lanes": self.lanes.since(int(cursor)),
            "times": self.lanes.times(),
            "position": self.position,
        }


class Watch:
    """The runs that pages look at."""

    def __init__(self, store: Store, follower: Follower) -> None:
        self.store = store
        self._follower = follower
        self._lock = threading.Lock()
        self._watched: OrderedDict[int, Watched] = OrderedDict()

    @contextmanager
    def measurements(self, number: int) -> Iterator[Watched]:
        """Give the measurements of a run as they are now, for as long as the block lasts."""
        with self._lock:
            watched = self._watched.get(number) or self._watched.setdefault(number, Watched(number, self._follower))
            self._watched.move_to_end(number)
            while len(self._watched) > MOST_RUNS:
                self._watched.popitem(last=False)
        with watched.lock:
            watched.update()
            yield watched

    def open(self, number: int) -> Run:
        """Return a run; StoreError where there is none of this number."""
        return Run(self.store, self.store.find(number), build=load_model)

    def figure(self, run: Run, **described: Any) -> dict[str, Any]:
        """Return the figure of a run, thinned to what a plot can show, and the position to continue from."""
        with self.measurements(run.id) as watched:
            return {
                **describe_figure(run, **described),
                "curves": watched.curves.between(columns=PLOT_COLUMNS),
                "lanes": watched.lanes.between(columns=PLOT_COLUMNS),
                "times": run.times or watched.lanes.times(),
                "position": watched.position,
            }
