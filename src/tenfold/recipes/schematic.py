"""A drawing of how an experiment divides its data: the shards of its nodes, and the folds of each."""

from tenfold.experiment import Experiment
from tenfold.report.plots import palette
from tenfold.report.plots.charts import BarPart, BarTable

MOST_FOLDS = 10
"""At most this many models are drawn; the others look the same."""
GAPPED = 0.985
"""The part of a node's shard that is drawn, so that shards stand apart."""
TRAINED, VALIDATED, TESTED = 0, 1, 2
NAMES = ("trained on", "validated on", "test part, held out")
COLOURS = (palette.BLUE, palette.GREEN, palette.ORANGE)


def division_plot(experiment: Experiment) -> BarTable:
    """Return the drawing: a row for each node, or for each fold where the experiment has folds."""
    workers, folds = experiment.division.workers, experiment.division.folds
    held = 1 - (experiment.data.test_fraction or 0.2)
    rows = _shards(workers, held) if folds is None else _folds(experiment, folds, held)
    used = (TRAINED, TESTED) if folds is None else (TRAINED, VALIDATED, TESTED)
    counted = f"{workers} nodes" + (f", {folds} folds" if folds is not None else "")
    return BarTable(
        title=f"how the data are divided: {counted}; the width is all samples",
        measures=[""],
        zeros=[0.0],
        series=[(NAMES[one], COLOURS[one]) for one in used],
        rows=[(name, [[_part(used.index(kind), *ends, name) for kind, ends in parts]]) for name, parts in rows],
        one_line=True,
    )


Parts = list[tuple[int, tuple[float, float]]]
"""What a range of samples is used for; its ends are shares of all samples."""


def _shards(workers: int, held: float) -> list[tuple[str, Parts]]:
    share = held / workers
    return [
        (f"node {node + 1}", [(TRAINED, (node * share, (node + 1) * share)), (TESTED, (held, 1.0))])
        for node in range(workers)
    ]


def _folds(experiment: Experiment, folds: int, held: float) -> list[tuple[str, Parts]]:
    """Return the parts of each fold's models; with data-and-folds each node divides its own shard into folds."""
    nodes = experiment.division.workers if experiment.division.fold_mode == "data-and-folds" else 1
    share = held / nodes
    found: list[tuple[str, Parts]] = []
    for fold in range(min(folds, MOST_FOLDS)):
        parts: Parts = []
        for node in range(nodes):
            first, whole = node * share, share * (1.0 if nodes == 1 else GAPPED)
            begin, end = first + fold * whole / folds, first + (fold + 1) * whole / folds
            trained = [(first, begin), (end, first + whole)]
            parts += [(TRAINED, ends) for ends in trained if ends[1] - ends[0] > 1e-9] + [(VALIDATED, (begin, end))]
        found.append((f"fold {fold + 1}", [*parts, (TESTED, (held, 1.0))]))
    return found


def _part(series: int, begin: float, end: float, name: str) -> BarPart:
    return BarPart(series=series, begin=begin, end=end, note=f"{name}: {end - begin:.1%} of the samples")
