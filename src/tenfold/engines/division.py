"""From the experiment's division to the mixer that carries it out; what does not fit together is said here."""

from dataclasses import fields
from typing import Any

from tenfold.engines.asynchronous import MIXERS
from tenfold.engines.links import Links
from tenfold.engines.mixer import GradientMixer, Mixer, RoundMixer
from tenfold.errors import ExperimentError
from tenfold.experiment import Division, Experiment
from tenfold.mixing import COMPRESSIONS, OUTER, STRATEGIES, AsynchronousStrategy, Strategy
from tenfold.training import Replica

EXACT = "allreduce or parameter-server"


def make_strategy(division: Division) -> Strategy:
    """Return the strategy with its options."""
    return _member("strategy", STRATEGIES[division.strategy], division.strategy_options)  # type: ignore[no-any-return]


def check(experiment: Experiment) -> None:
    """Refuse what cannot work together, before anything starts."""
    division, n = experiment.division, experiment.division.workers
    strategy = make_strategy(division)
    exact = strategy.period(n) == 1 and strategy.round(0, n).is_exact
    _member("outer", OUTER[division.outer], division.outer_options)
    compressor = _member("compression", COMPRESSIONS[division.compression], division.compression_options, 1)
    choices = {
        "outer": division.outer != "none",
        "compression": compressor.error_feedback,
        "average": division.average == "gradients",
    }
    for field, chosen in choices.items():
        if chosen and not exact:
            raise ExperimentError(
                f'division.{field} = "{getattr(division, field)}" needs rounds after which all replicas are alike, '
                f'which "{division.strategy}" does not give; take {EXACT}'
            )
    if division.average == "gradients":
        for field, plain in (("outer", "none"), ("optimizer_state", "local")):
            if getattr(division, field) != plain:
                raise ExperimentError(
                    f'division.average = "gradients" mixes before every step; '
                    f"division.{field} must be {plain!r} with it"
                )
        if experiment.training.optimizer == "lbfgs":
            raise ExperimentError('training.optimizer = "lbfgs" steps by itself; set division.average = "weights"')
    if division.optimizer_state == "average" and experiment.training.optimizer == "lbfgs":
        raise ExperimentError(
            'training.optimizer = "lbfgs" has no state to average; set division.optimizer_state = "local"'
        )
    if strategy.asynchronous:
        for field, plain in (("compression", "none"), ("optimizer_state", "local")):
            if getattr(division, field) != plain:
                raise ExperimentError(f'division.strategy = "{division.strategy}" needs division.{field} = "{plain}"')
        if experiment.training.optimizer == "lbfgs":
            raise ExperimentError(f'training.optimizer = "lbfgs" cannot be used with "{division.strategy}"; take sgd')


def make_mixer(division: Division, replica: Replica, links: Links, samples: list[float]) -> Mixer:
    """Return what mixes this replica with the others."""
    strategy = make_strategy(division)
    if isinstance(strategy, AsynchronousStrategy):
        return MIXERS[strategy.name](strategy, replica, links, samples)
    outer = _member("outer", OUTER[division.outer], division.outer_options)
    size = replica.flat.parameters if division.average == "weights" else sum(p.numel() for p in replica.learning)
    compressor = _member("compression", COMPRESSIONS[division.compression], division.compression_options, size)
    mixer = RoundMixer if division.average == "weights" else GradientMixer
    return mixer(division, strategy, outer, compressor, replica, links, samples)


def _member(kind: str, member: Any, options: dict[str, Any], *args: Any) -> Any:
    """Return a member of a family with its options, or say which options it has."""
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
