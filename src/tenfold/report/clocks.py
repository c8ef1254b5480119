"""Which clock told the seconds: a predicted one and a measured one are never shown without saying which is which."""

from collections.abc import Iterable
from typing import Protocol

from tenfold.report.formatting import between, duration
from tenfold.runs import Run

MEASURED, PREDICTED = "measured", "predicted"
INTERVAL = "[low-high]: nine of ten runs should lie between"
UNCALIBRATED = (
    "uncalibrated: step times were described by hand, not measured, and the predicted seconds are no better than these"
)


class Timed(Protocol):
    """Whatever has times."""

    @property
    def clock(self) -> str:
        """Who told them: measured or predicted."""
        ...


def of(timed: Iterable[Timed]) -> str:
    """Return "measured", "predicted", or "measured and predicted"."""
    found = {one.clock for one in timed}
    return " and ".join(sorted(found)) or MEASURED


def is_uncalibrated(run: Run) -> bool:
    """Tell whether the seconds were predicted from hardware that was only described."""
    return run.clock == PREDICTED and run.result.get("calibrated") is False


def about(run: Run) -> str:
    """Return what is to be said beside a time: "measured", or "predicted [1.18-1.31], uncalibrated"."""
    around = f" {between(*run.interval, run.seconds)}" if run.interval and run.seconds is not None else ""
    return f"{run.clock}{around}{', uncalibrated' if is_uncalibrated(run) else ''}"


def training(run: Run) -> str:
    """Return the training time and who told it: "1.24 s predicted [1.18-1.31]"."""
    return f"{duration(run.seconds)} {about(run)}" if run.seconds is not None else duration(None)


def truth(timed: Iterable[Timed]) -> str:
    """Return what holds for every time on a page."""
    return {
        MEASURED: "Every time on this page was measured",
        PREDICTED: "Every time on this page is predicted, unless it is said to be measured",
    }.get(of(timed), "Every time on this page was measured, unless it is said to be predicted")
