"""From the experiment's division to the mixer that carries it out; what does not fit together is said here."""

from dataclasses import fields
from typing import Any, TypeVar

from tenfold.engines.asynchronous import MIXERS
from tenfold.engines.links import Links
from tenfold.engines.mixer import GradientMixer, Mixer, RoundMixer
from tenfold.engines.rounds import Mixed, Rounds
from tenfold.errors import ExperimentError
from tenfold.experiment import Division, Experiment
from tenfold.mixing import COMPRESSIONS, OUTER, STRATEGIES, AsynchronousStrategy, Strategy, learning_rate_scale
from tenfold.mixing.compression import Compressor
from tenfold.mixing.outer import OuterOptimizer
from tenfold.training import Replica

EXACT = "allreduce or parameter-server"


def make_strategy(division: Division) -> Strategy:
    """Return the strategy with its options."""
    return _member("strategy", STRATEGIES[division.strategy], division.strategy_options)  # type: ignore[no-any-return]


def rate_scale(division: Division) -> float:
    """Return the factor of the learning rate, which makes up for averaging.

    Replicas without rounds are not averaged, and an outer optimizer's momentum makes up for it by itself.
    """
    strategy, n = make_strategy(division), division.workers
    rounds = (strategy.round(r, n) for r in range(strategy.period(n) or 1))
    averaged = any(not one.is_idle for one in rounds) and division.outer == "none"
    return learning_rate_scale(division.lr_scaling, n) if averaged else 1.0


def warmup_epochs(experiment: Experiment) -> float:
    """Return the epochs of warm-up: those asked for, else one, or a fifth of a short run, where the rate is scaled."""
    training = experiment.training
    if training.warmup is not None:
        return training.warmup
    return min(1.0, training.epochs / 5) if rate_scale(experiment.division) > 1 else 0.0


def can_capture(division: Division) -> bool:
    """Say whether a replica's steps may be captured whole: rounds then touch nothing but its weights."""
    plain = division.average == "weights" and division.optimizer_state == "local"
    return plain and not make_strategy(division).asynchronous


def check(experiment: Experiment) -> None:
    """Refuse what cannot work together, before anything starts."""
    division, n = experiment.division, experiment.division.workers
    strategy = make_strategy(division)
    surviving = experiment.machine.on_failure == "continue" and experiment.machine.engine != "virtual"
    make_outer(division)
    compressor = make_compressor(division, 1)
    choices = {
        "outer": division.outer != "none",
        "compression": compressor.error_feedback,
        "average": division.average == "gradients",
    }
    for field, chosen in choices.items():
        inexact = [m for m in range(n, 0, -1) if not _exact(strategy, m)] if chosen and surviving else [n]
        if chosen and inexact and not _exact(strategy, inexact[0]):
            among = f" among the {inexact[0]} workers that may be left" if inexact[0] != n else ""
            raise ExperimentError(
                f'division.{field} = "{getattr(division, field)}" needs rounds after which all replicas are alike, '
                f'which "{division.strategy}" does not give{among}; take {EXACT}'
            )
    if surviving and n > 1:
        _check_survival(division, strategy)
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


def _exact(strategy: Strategy, n: int) -> bool:
    """Say whether all of so many replicas are alike after every round."""
    return strategy.period(n) == 1 and strategy.round(0, n).is_exact


def _check_survival(division: Division, strategy: Strategy) -> None:
    """Refuse what could not go on with fewer workers."""
    otherwise = 'or set machine.on_failure = "end"'
    if strategy.asynchronous:
        raise ExperimentError(
            f'machine.on_failure = "continue" is for strategies with rounds, which division.strategy = '
            f'"{division.strategy}" has none of; take one such as butterfly, {otherwise}'
        )
    if division.shards == "fractions":
        raise ExperimentError(
            'machine.on_failure = "continue" divides the data anew among those who are left, but division.shards = '
            f'"fractions" says how much each of {division.workers} workers gets; take iid, {otherwise}'
        )


def make_mixer(division: Division, replica: Replica, links: Links, samples: list[float]) -> Mixer:
    """Return what mixes this replica with the others."""
    strategy = make_strategy(division)
    if isinstance(strategy, AsynchronousStrategy):
        return MIXERS[strategy.name](strategy, replica, links, samples)
    kind = RoundMixer if division.average == "weights" else GradientMixer
    return make_rounds(division, replica, links, samples, kind)


R = TypeVar("R", bound=Rounds)


def make_rounds(division: Division, replica: Mixed, links: Links, samples: list[float], kind: type[R]) -> R:
    """Return the rounds of a replica, of the kind that its driver needs."""
    size = replica.flat.parameters if division.average == "weights" else sum(p.numel() for p in replica.learning)
    strategy, outer, compressor = make_strategy(division), make_outer(division), make_compressor(division, size)
    return kind(division, strategy, outer, compressor, replica, links, samples)


def make_outer(division: Division) -> OuterOptimizer:
    """Return the outer optimizer with its options."""
    return _member("outer", OUTER[division.outer], division.outer_options)  # type: ignore[no-any-return]


def make_compressor(division: Division, size: int) -> Compressor:
    """Return one sender's compressor for vectors of this size."""
    options = division.compression_options
    return _member("compression", COMPRESSIONS[division.compression], options, size)  # type: ignore[no-any-return]


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
