"""Callbacks: the user's objects whose methods are called while a run trains, in the process that started it.

They are called after an event is recorded, and may stop the training but change nothing else. The time spent in them is
measured, and a run that they slow down shows a warning.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, get_args

from tenfold.errors import ExperimentError, StopTraining
from tenfold.registry import suggest
from tenfold.runs.events import (
    Emit,
    Ended,
    EpochEnded,
    Event,
    FoldChanged,
    FoldsStarted,
    Metric,
    Note,
    Recorded,
    Span,
    Started,
    Warned,
    WorkerDropped,
)

NOTICED_SECONDS = 0.2
NOTICED_SHARE = 0.05
BEHIND = "successive halving"
"""The reason recorded for a run that was stopped because it had fallen behind other runs."""


class Callback:
    """Base class of callbacks with all methods; override those you need.

    A callback may be any object that has some of these methods. Raise `tenfold.StopTraining` in one of them to stop the
    training: at the end of the epoch, or at the next evaluation if that comes first (see `evaluate_every`). In a
    cross-validation it stops the fold whose event it was raised for, which is number `event.fold`, or all folds (see
    `tenfold.StopTraining`).
    """

    def on_recorded(self, event: Recorded) -> None:
        """The run has a number in the store."""

    def on_run_start(self, event: Started | FoldsStarted) -> None:
        """Training begins, or continues where it was interrupted."""

    def on_fold(self, event: FoldChanged) -> None:
        """A fold of a cross-validation began or ended."""

    def on_metric(self, event: Metric) -> None:
        """A number was measured: loss and learning rate every `log_every` steps, and each metric of an evaluation."""

    def on_evaluation(self, event: Metric) -> None:
        """A metric was measured on the validation or test part."""

    def on_epoch_end(self, event: EpochEnded) -> None:
        """All workers have completed an epoch; `event.metrics` has the metrics after it."""

    def on_span(self, event: Span) -> None:
        """A worker spent time on something: data, compute, communicate, ...; called very often."""

    def on_note(self, event: Note) -> None:
        """A message to the user that is not a warning."""

    def on_warning(self, event: Warned) -> None:
        """A problem was found, but training continues."""

    def on_worker_lost(self, event: WorkerDropped) -> None:
        """A worker was lost, and the others continue without it."""

    def on_run_end(self, event: Ended) -> None:
        """The run is over; `event.status` is finished, failed or interrupted."""


@dataclass(frozen=True)
class StopBehind(Callback):
    """Stops a run whose metric after an epoch is worse than required."""

    metric: str
    """The metric with its part, such as validation_accuracy."""
    lower: bool
    """Whether lower values are better."""
    needed: Mapping[int, float]
    """The worst value with which the run continues, by the number of completed epochs."""

    def on_epoch_end(self, event: EpochEnded) -> None:
        value, needed = event.metrics.get(self.metric), self.needed.get(event.epoch + 1)
        if value is not None and needed is not None and (value > needed if self.lower else value < needed):
            raise StopTraining(BEHIND)


def _events_of(method: Callable[..., None]) -> tuple[type, ...]:
    event = method.__annotations__["event"]
    return get_args(event) or (event,)


METHODS = {name: _events_of(method) for name, method in vars(Callback).items() if name.startswith("on_")}
"""The methods of callbacks, with the events that each is called with."""


class Callbacks:
    """A listener that forwards events to callbacks, and raises StopTraining if one of them asked to stop.

    It raises only after events at which training can stop: an evaluation and the end of an epoch, and in a
    cross-validation the start and the end of a fold.
    """

    def __init__(self, listen: Emit, callbacks: Iterable[object]) -> None:
        """Call `listen` and the callbacks; ExperimentError for objects that are not callbacks."""
        self.listen = listen
        self.seconds: dict[str, float] = {}
        """Time spent in each method, by its name."""
        self._methods: dict[type, list[tuple[str, Callable[[Any], object]]]] = {}
        self._stops: dict[int | None, StopTraining] = {}
        """The requests to stop, by the position of the fold, or None for the whole run."""
        for callback in callbacks:
            for name in _methods_of(callback):
                for event in METHODS[name]:
                    label = f"{type(callback).__name__}.{name}"
                    self._methods.setdefault(event, []).append((label, getattr(callback, name)))

    def __call__(self, event: Event) -> None:
        """Call the listener and the methods for this event."""
        self._call("listen", self.listen, event)
        training = isinstance(event, Metric) and event.part == "train"
        for name, method in self._methods.get(type(event), ()):
            if not (training and name.endswith(".on_evaluation")):
                self._call(name, method, event)
        if isinstance(event, Ended):
            self._warn_if_slow(event)
        decides = isinstance(event, EpochEnded | FoldsStarted | FoldChanged) or (
            isinstance(event, Metric) and event.part != "train"
        )
        stop = self._stops.get(None) or self._stops.get(_place(event))
        if stop is not None and decides:
            raise stop

    def _call(self, name: str, method: Callable[[Any], object], event: Event) -> None:
        began = perf_counter()
        try:
            method(event)
        except StopTraining as stop:
            place = None if stop.all_folds else _place(event)
            named = StopTraining(str(stop) or name.partition(".")[0], all_folds=place is None)
            self._stops.setdefault(place, named)
        self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - began

    def _warn_if_slow(self, event: Ended) -> None:
        spent = {name: seconds for name, seconds in self.seconds.items() if name != "listen"}
        total = sum(spent.values())
        if total > max(NOTICED_SECONDS, NOTICED_SHARE * event.at):
            slowest = max(spent, key=lambda name: spent[name])
            warnings.warn(
                f"callbacks took {total:.3g} s of the run's {event.at:.3g} s, {slowest} alone {spent[slowest]:.3g} s",
                stacklevel=2,
            )


def as_list(callbacks: Iterable[object] | object) -> list[object]:
    """Return callbacks, given as several, a single one or None, as a list."""
    if isinstance(callbacks, list | tuple | set):
        return list(callbacks)
    return [] if callbacks is None else [callbacks]


def _place(event: Event) -> int | None:
    """Return the position of the fold that an event is about; None outside a cross-validation."""
    return event.fold_index if isinstance(event, Metric | EpochEnded) and event.fold else None


def _methods_of(callback: object) -> list[str]:
    """Return the names of an object's event methods, except those merely inherited from Callback."""
    named = [name for name in dir(callback) if name.startswith("on_") and callable(getattr(callback, name))]
    if isinstance(callback, type) or not named:
        made = f"an object of {callback.__name__}, {callback.__name__}()" if isinstance(callback, type) else "an object"
        raise ExperimentError(
            f"callbacks=[...] takes {made} with methods such as on_epoch_end(event), not {type(callback).__name__}; "
            f"methods: {', '.join(METHODS)}"
        )
    for name in named:
        if name not in METHODS:
            raise ExperimentError(f"{type(callback).__name__}.{name} is never called; {suggest(name, METHODS)}")
    own = [name for name in named if getattr(type(callback), name, None) is not getattr(Callback, name)]
    return [name for name in METHODS if name in own]
