"""A run's spans as a trace that Perfetto and chrome://tracing open."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from tenfold.runs import Event, Lifecycle, Span

MICROSECONDS = 1e6


def chrome_trace(events: Iterable[Event], names: Mapping[int, str] | None = None) -> dict[str, Any]:
    """Return the trace, in Chrome's trace event format: one lane a worker, named after it unless `names` knows better.

    Spans that were merged over a window of steps all begin where it begins; they are laid end to end, with their
    number in `count`. What a run said about itself (an epoch, a warning) becomes a mark.
    """
    taken: dict[tuple[int, float], float] = defaultdict(float)
    workers: set[int] = set()
    traced: list[dict[str, Any]] = []
    for event in events:
        if not isinstance(event, Span | Lifecycle):
            continue
        workers.add(event.worker)
        lane = {"pid": 0, "tid": event.worker}
        if isinstance(event, Lifecycle):
            mark = {"name": event.what, "ph": "i", "s": "t", "ts": event.at * MICROSECONDS}
            traced.append({**lane, **mark, "args": {"detail": event.detail, "epoch": event.epoch}})
            continue
        begin = event.at + taken[event.worker, event.at]
        taken[event.worker, event.at] += event.seconds
        span = {"name": event.kind, "cat": event.kind, "ph": "X"}
        clock = {"ts": begin * MICROSECONDS, "dur": event.seconds * MICROSECONDS}
        traced.append({**lane, **span, **clock, "args": {"count": event.count, "epoch": event.epoch}})
    lanes = [lane for worker in sorted(workers) for lane in _lane(worker, (names or {}).get(worker))]
    return {"displayTimeUnit": "ms", "traceEvents": [*lanes, *traced]}


def _lane(worker: int, name: str | None) -> list[dict[str, Any]]:
    about = {"pid": 0, "tid": worker, "ph": "M"}
    return [
        {**about, "name": "thread_name", "args": {"name": name or f"worker {worker}"}},
        {**about, "name": "thread_sort_index", "args": {"sort_index": worker}},
    ]
