"""What does not fit together in an experiment, said before anything starts."""

from tenfold.errors import ExperimentError
from tenfold.experiment import Division, Experiment
from tenfold.mixing import Strategy
from tenfold.mixing.builders import make_compressor, make_outer, make_strategy

EXACT = "allreduce or parameter-server"


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
