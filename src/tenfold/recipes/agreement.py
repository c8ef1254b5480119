"""Where a paper's numbers and ours agree, computed from both: the order, the direction of change, the best row."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from tenfold.common.metric_table import lower_is_better
from tenfold.recipes.recipe import PaperClaim
from tenfold.report.formatting import duration, grouped, metric_value
from tenfold.report.run_values import is_time

Numbers = Sequence[tuple[str, Mapping[str, float], Mapping[str, float]]]
"""For each row its label, the paper's numbers and ours, by column."""


def written(column: str, value: float) -> str:
    """Return a number as tables show it, with its unit."""
    if is_time(column):
        return duration(value)
    if column in ("PI", "gain"):
        return f"{value:.2f} %"
    return f"{value:.2f}x" if column == "speedup" else metric_value(column, value)


def sentence(column: str, rows: Numbers) -> str:
    """Return one sentence about a column; "" where no row has both numbers."""
    both = [(label, paper[column], ours[column]) for label, paper, ours in rows if column in paper and column in ours]
    if not both:
        return ""
    name = column.replace("_", " ")
    if len(both) == 1:
        label, their_value, my_value = both[0]
        return f"{name}: {written(column, their_value)} in the paper, {written(column, my_value)} here ({label})."
    labels = [label for label, _, _ in both]
    theirs, mine = [paper for _, paper, _ in both], [ours for _, _, ours in both]
    parts = [_order(labels, theirs, mine), _signs(theirs, mine) + _by_factors(column, theirs, mine)]
    best = _best(column)
    their_best, my_best = labels[theirs.index(best(theirs))], labels[mine.index(best(mine))]
    word = "highest" if best is max else "lowest"
    parts.append(
        f"both have the {word} value at {their_best}"
        if their_best == my_best
        else f"the {word} value is at {their_best} in the paper and at {my_best} here"
    )
    return f"{name}: " + "; ".join(part for part in parts if part) + "."


def check_claim(claim: PaperClaim, rows: Sequence[tuple[str, bool, float]]) -> str:
    """Return whether a claim holds: in each group of rows one that should be the best must have the best value.

    Each row has the name of its group, whether it should be the best, and its value. "" where no group can decide it.
    Of times above 0, the sentence also says by which factor they differ.
    """
    groups = grouped((group, (favoured, value)) for group, favoured, value in rows)
    decided = {group: found for group, found in groups.items() if len({favoured for favoured, _ in found}) == 2}
    if not decided:
        return ""
    best = _best(claim.column)
    holds: dict[str, bool] = {}
    factors: dict[str, float] = {}
    for group, found in decided.items():
        own, others = (best(value for favoured, value in found if favoured is which) for which in (True, False))
        holds[group] = best(own, others) == own
        if is_time(claim.column) and min(own, others) > 0:
            factors[group] = others / own
    quoted, number = f'The paper says "{claim.said}"', len(holds)
    if claim.factor:
        if not factors:
            return ""
        cases = f" in {len(factors)} cases" if len(factors) > 1 else ""
        return f"{quoted}: here the factor is {_range(factors.values())}{cases}."
    yes, no = ([group for group, held in holds.items() if held is which] for which in (True, False))
    by, the_other_way = (_factor([factors[group] for group in some if group in factors]) for some in (yes, no))
    if not no:
        return f"{quoted}: this holds here{f' in all {number} cases' if number > 1 else ''}{by}."
    if not yes:
        in_none = f"this holds here in none of {number} cases" if number > 1 else "this does not hold here"
        return f"{quoted}: {in_none}{the_other_way}."
    return f"{quoted}: this holds here for {'; '.join(yes)}{by}, not for {'; '.join(no)}{the_other_way}."


def _factor(factors: Sequence[float]) -> str:
    """Return by which factor times differ, in parentheses; "" where there are no times."""
    if not factors:
        return ""
    if max(factors) < 1:
        return f" (the other way round, by a factor of {_range(1 / factor for factor in factors)})"
    return f" (by a factor of {_range(factors)})"


def _range(factors: Iterable[float]) -> str:
    low, *_, high = sorted([*factors] * 2)
    return " to ".join(dict.fromkeys(f"{factor:.3g}" for factor in (low, high)))


def _best(column: str) -> Callable[..., float]:
    """Return the function that finds the best value of a column."""
    return min if is_time(column) or lower_is_better(column) else max


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


def _by_factors(column: str, theirs: Sequence[float], mine: Sequence[float]) -> str:
    """Return by which factors two times differ, in the paper and here."""
    if len(theirs) != 2 or not is_time(column) or min(*theirs, *mine) <= 0:
        return ""
    return f", by a factor of {max(theirs) / min(theirs):.3g} in the paper and {max(mine) / min(mine):.3g} here"


def _ranked(labels: Sequence[str], values: Sequence[float]) -> list[str]:
    return [label for _, label in sorted(zip(values, labels, strict=True))]
