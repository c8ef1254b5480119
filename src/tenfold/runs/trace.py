"""A run's spans as a trace that Perfetto and chrome://tracing open."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from tenfold.runs.events import Event, Lifecycle, Span, facts_of

MICROSECONDS = 1e6


def chrome_trace(events: Iterable[Event], *, clock: str = "measured") -> dict[str, Any]:
    """Return the trace, in Chrome's trace event format: one lane per worker.

    Spans that were merged over a window of steps all begin where it begins; they are laid end to end, with their
    number in `count`. What a run said about itself (an epoch, a warning) becomes a mark, if its time was measured.
    The process is named after the clock: 0 for measured times, 1 for predicted ones.
    """
    pid = int(clock == "predicted")
    taken: dict[tuple[int, float], float] = defaultdict(float)
    workers: set[int] = set()
    traced: list[dict[str, Any]] = []
    for event in events:
        if not isinstance(event, Span | Lifecycle):
            continue
        if isinstance(event, Lifecycle) and clock == "predicted":
            continue
        workers.add(event.worker)
        lane = {"pid": pid, "tid": event.worker}
        if isinstance(event, Lifecycle):
            mark = {"name": event.stage, "ph": "i", "s": "t", "ts": event.at * MICROSECONDS}
            traced.append({**lane, **mark, "args": {**facts_of(event), "epoch": event.epoch}})
            continue
        begin = event.at + taken[event.worker, event.at]
        taken[event.worker, event.at] += event.seconds
        span = {"name": event.kind, "cat": event.kind, "ph": "X"}
        when = {"ts": begin * MICROSECONDS, "dur": event.seconds * MICROSECONDS}
        traced.append({**lane, **span, **when, "args": {"count": event.count, "epoch": event.epoch}})
    process = {"pid": pid, "ph": "M", "name": "process_name", "args": {"name": clock}}
    lanes = [lane for worker in sorted(workers) for lane in _lane(pid, worker)]
    return {"displayTimeUnit": "ms", "traceEvents": [process, *lanes, *traced]}


def _lane(pid: int, worker: int) -> list[dict[str, Any]]:
    about = {"pid": pid, "tid": worker, "ph": "M"}
    return [
        {**about, "name": "thread_name", "args": {"name": f"worker {worker}"}},
        {**about, "name": "thread_sort_index", "args": {"sort_index": worker}},
    ]
