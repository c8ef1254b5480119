"""The real run that a virtual one is the twin of."""

from tenfold.report import clocks
from tenfold.report.differences import comparable_fields
from tenfold.runs import Run

TWIN = "twin"
"""The kind of both runs that `tenfold twin` makes."""
VIRTUAL_FIELDS = ("engine", "cluster", "link")
"""Fields in which the experiments of twins differ."""


def find_twin(run: Run) -> Run | None:
    """Return the measured run that `tenfold twin` made before this virtual one; None where there is none."""
    if run.kind != TWIN or run.clock != clocks.PREDICTED:
        return None
    wanted = _shared_fields(run)
    for record in reversed(run.store.records()):
        if record["id"] >= run.id or record["kind"] != TWIN or record["problems"]:
            continue
        other = run.other(record["id"])
        if not other.problem and other.clock == clocks.MEASURED and _shared_fields(other) == wanted:
            return other
    return None


def _shared_fields(run: Run) -> dict[str, object]:
    return {name: value for name, value in comparable_fields(run.experiment).items() if name not in VIRTUAL_FIELDS}
