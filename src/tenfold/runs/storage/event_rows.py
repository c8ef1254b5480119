"""Events as rows of plain values, to be stored or sent, and back; rows of earlier versions are read, too."""

import json
from dataclasses import asdict
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tenfold.runs.events import (
    CheckpointFailed,
    Ended,
    EpochEnded,
    Event,
    FoldChanged,
    FoldsStarted,
    Lifecycle,
    Metric,
    Note,
    Printed,
    Recorded,
    Span,
    Started,
    Warned,
    WorkerDropped,
    WorkerJoined,
)

STAGES: dict[str, type[Lifecycle]] = {
    stage.KIND: stage
    for stage in (
        Recorded,
        Started,
        FoldsStarted,
        FoldChanged,
        EpochEnded,
        Note,
        Printed,
        Warned,
        CheckpointFailed,
        WorkerDropped,
        WorkerJoined,
        Ended,
    )
}


def family(event: Event) -> str:
    """Return "lifecycle", "metric" or "span"."""
    return "lifecycle" if isinstance(event, Lifecycle) else type(event).__name__.lower()


def as_row(event: Event) -> dict[str, Any]:
    """Return the event as a dictionary of plain values that names its type."""
    kind = {"what": event.KIND} if isinstance(event, Lifecycle) else {}
    return {"type": family(event), **kind, **asdict(event)}


def facts_of(event: Event) -> dict[str, Any]:
    """Return what an event says beyond when, in which epoch and by which worker."""
    return {name: value for name, value in asdict(event).items() if name not in ("at", "epoch", "worker")}


def from_row(row: dict[str, Any]) -> Event:
    """Return the event of a row; ValueError where it is damaged, or from a version with other events.

    Fields that this version does not know are ignored.
    """
    if row.get("type") == "lifecycle" and "detail" in row:
        row = _of_details(row)
    try:
        found = {"metric": Metric, "span": Span}.get(row["type"]) or STAGES[row["what"]]
        return _adapter(found).validate_python(row)
    except (KeyError, TypeError, ValidationError):
        raise ValueError(f"this version of Tenfold cannot read the event {json.dumps(row)[:200]}") from None


@cache
def _adapter(kind: type[Event]) -> TypeAdapter[Event]:
    return TypeAdapter(kind)


def _of_details(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of an event whose facts were kept as text in `detail`."""
    row = dict(row)
    what, detail = row.get("what"), str(row.pop("detail"))
    try:
        facts = json.loads(detail)
    except ValueError:
        facts = {}
    facts = facts if isinstance(facts, dict) else {}
    if what in ("started", "resumed"):
        kind = FoldsStarted.KIND if "names" in facts else Started.KIND
        unknown = {"steps_per_epoch": 0, "batch_size": 0, "workers": 1, "train_samples": 0}
        return {**(unknown if kind == Started.KIND else {}), **row, **facts, "what": kind, "resumed": what == "resumed"}
    if what in ("finished", "failed", "interrupted"):
        return {**row, "what": Ended.KIND, "status": what, "error": detail}
    if what == FoldChanged.KIND:
        return {**row, **facts}
    if what == Recorded.KIND:
        return {**row, "run": detail}
    return {**row, "text": detail}
