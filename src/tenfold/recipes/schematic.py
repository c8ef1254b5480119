"""A drawing of how an experiment divides its data: the shards of its nodes, and the folds of each."""

from typing import Any

from tenfold.experiment import Experiment
from tenfold.report.plots import palette
from tenfold.report.plots.svg import draw_svg, legend_below

MOST_FOLDS = 10
"""So many models are drawn; the others look alike."""


def draw_division(name: str, experiment: Experiment) -> str:
    """Return the drawing as SVG: a row for each node, or for each fold where the experiment has folds."""
    workers, folds = experiment.division.workers, experiment.division.folds
    rows = workers if folds is None else min(folds, MOST_FOLDS)
    about = f"how the data are divided: {workers} nodes" + (f", {folds} folds" if folds is not None else "")
    return draw_svg(name, about, (6.4, 1.1 + 0.32 * rows), _shards(experiment) if folds is None else _folds(experiment))


def _shards(experiment: Experiment) -> Any:
    workers, test = experiment.division.workers, _test_share(experiment)

    def paint(figure: Any) -> None:
        axes = figure.subplots()
        own, tested = palette.series(0)[0], palette.series(1)[0]
        share = (1 - test) / workers
        for node in range(workers):
            bar = axes.barh(node, share, left=node * share, height=0.6, color=own)
            held = axes.barh(node, test, left=1 - test, height=0.6, color=tested, alpha=0.5)
        legend_below(figure, [(bar, "trained on by this node"), (held, "test part, held out")])
        _finish(axes, [f"node {node + 1}" for node in range(workers)])

    return paint


def _folds(experiment: Experiment) -> Any:
    division, test = experiment.division, _test_share(experiment)
    nodes = division.workers if division.fold_mode == "data-and-folds" else 1
    k = division.folds or 2

    def paint(figure: Any) -> None:
        axes = figure.subplots()
        train, validated, tested = (palette.series(place)[0] for place in (0, 2, 1))
        share = (1 - test) / nodes
        for fold in range(min(k, MOST_FOLDS)):
            for node in range(nodes):
                left = node * share
                bar = axes.barh(fold, share * 0.97, left=left, height=0.6, color=train)
                part = axes.barh(
                    fold, share * 0.97 / k, left=left + fold * share * 0.97 / k, height=0.6, color=validated
                )
            held = axes.barh(fold, test, left=1 - test, height=0.6, color=tested, alpha=0.5)
        legend_below(figure, [(bar, "trained on"), (part, "validated on"), (held, "test part, held out")])
        _finish(axes, [f"fold {fold + 1}" for fold in range(min(k, MOST_FOLDS))])
        if nodes > 1:
            axes.set_xticks([(node + 0.5) * share for node in range(nodes)], [f"node {n + 1}" for n in range(nodes)])

    return paint


def _finish(axes: Any, labels: list[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0%", "50%", "100% of the samples"])
    axes.grid(visible=False)


def _test_share(experiment: Experiment) -> float:
    return experiment.data.test_fraction or 0.2
