"""Builds strategies, outer optimizers and compressors from the [division] section of an experiment."""

from dataclasses import fields
from typing import Any

from tenfold.common.catalog import COMPRESSIONS, OUTER, STRATEGIES
from tenfold.errors import ExperimentError
from tenfold.experiment import Division
from tenfold.mixing.base import Strategy
from tenfold.mixing.compression import Compressor
from tenfold.mixing.outer import OuterOptimizer


def make_strategy(division: Division) -> Strategy:
    """Return the strategy with its options."""
    return _member("strategy", STRATEGIES[division.strategy], division.strategy_options)  # type: ignore[no-any-return]


def make_outer(division: Division) -> OuterOptimizer:
    """Return the outer optimizer with its options."""
    return _member("outer", OUTER[division.outer], division.outer_options)  # type: ignore[no-any-return]


def make_compressor(division: Division, size: int) -> Compressor:
    """Return one sender's compressor for vectors of this size."""
    options = division.compression_options
    return _member("compression", COMPRESSIONS[division.compression], options, size)  # type: ignore[no-any-return]


def _member(kind: str, member: Any, options: dict[str, Any], *args: Any) -> Any:
    """Return a member of a family with its options; raise ExperimentError for options that it does not have."""
    known = [field.name for field in fields(member) if field.init and field.name != "size"]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ExperimentError(
            f"division.{kind}_options has no '{unknown[0]}'; "
            f"the options of {member.name} are: {', '.join(known) or 'none'}"
        )
    try:
        return member(*args, **options)
    except TypeError as error:
        raise ExperimentError(f"division.{kind}_options = {options}: {error}") from None
