"""Where ranks' time goes, and whose warnings are whose."""

import io

from rich.console import Console

from tenfold.experiment import Experiment
from tenfold.reports.progress import RankTimes, RunProgress
from tenfold.runs import EpochEnded, Metric, Span, Warned


def span(worker: int, kind: str, seconds: float) -> Span:
    return Span(at=0.0, kind=kind, seconds=seconds, worker=worker)  # type: ignore[arg-type]


def test_the_spans_of_the_asked_ranks_are_added_up() -> None:
    times = RankTimes({1, 3})
    for item in (span(1, "compute", 1.0), span(0, "compute", 5.0), span(1, "compute", 0.5), span(3, "wait", 2.0)):
        times.add(item)
    assert times.lines() == ["[rank 1] compute 1.50 s", "[rank 3] wait 2.00 s"]
    assert times.lines() == []


def test_all_means_all() -> None:
    times = RankTimes()
    times.add(span(7, "data", 1.0))
    assert times.lines() == ["[rank 7] data 1.00 s"]


def test_progress_tells_whose_warning_it_is_and_where_time_went() -> None:
    written = io.StringIO()
    with RunProgress(Experiment(), console=Console(file=written), ranks=RankTimes({1})) as progress:
        progress.listen(Warned(at=0.0, text="no cores", worker=3))
        progress.listen(span(1, "compute", 1.0))
        progress.listen(Metric(at=1.0, name="accuracy", value=0.5, part="test", step=10, epoch=0, seconds=1.0))
        progress.listen(EpochEnded(at=1.0))
    lines = written.getvalue().splitlines()
    assert lines[0] == "[rank 3] warning: no cores"
    assert lines[1].startswith("epoch 1/3  test accuracy 50.00%")
    assert lines[2] == "[rank 1] compute 1.00 s measured"
