"""Where a paper's numbers and ours agree, computed from both: the order, the direction of change, the best row."""

from collections.abc import Mapping, Sequence

from tenfold.report.scores import higher_is_better

OF_TIME = ("seconds", "speedup", "PI", "gain")

Numbers = Sequence[tuple[str, Mapping[str, float], Mapping[str, float]]]
"""For each row its label, the paper's numbers and ours, by column."""


def sentence(column: str, rows: Numbers) -> str:
    """Return one sentence about a column; "" where fewer than two rows have both numbers."""
    both = [(label, paper[column], ours[column]) for label, paper, ours in rows if column in paper and column in ours]
    if len(both) < 2:
        return ""
    labels = [label for label, _, _ in both]
    theirs, mine = [paper for _, paper, _ in both], [ours for _, _, ours in both]
    parts = [_order(labels, theirs, mine), _signs(theirs, mine)]
    best = max if column != "seconds" and higher_is_better(column) else min
    their_best, my_best = labels[theirs.index(best(theirs))], labels[mine.index(best(mine))]
    word = "highest" if best is max else "lowest"
    parts.append(
        f"both have the {word} value at {their_best}"
        if their_best == my_best
        else f"the {word} value is at {their_best} in the paper and at {my_best} here"
    )
    return f"{column}: " + "; ".join(part for part in parts if part) + "."


def _order(labels: Sequence[str], theirs: Sequence[float], mine: Sequence[float]) -> str:
    if len(labels) < 3:
        return ""
    same = _ranked(labels, theirs) == _ranked(labels, mine)
    return "the rows are in the same order" if same else "the order of the rows differs"


def _signs(theirs: Sequence[float], mine: Sequence[float]) -> str:
    """Compare the direction of change from each row to the next."""
    steps = len(theirs) - 1
    alike = sum((theirs[k + 1] > theirs[k]) == (mine[k + 1] > mine[k]) for k in range(steps))
    if steps == 1:
        return "it changes in the same direction" if alike else "it changes in the opposite direction"
    return f"{alike} of {steps} changes from row to row have the same sign"


def _ranked(labels: Sequence[str], values: Sequence[float]) -> list[str]:
    return [label for _, label in sorted(zip(values, labels, strict=True))]
