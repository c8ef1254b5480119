"""How the learning rate follows the number of replicas."""

from tenfold.experiment import Division, Experiment
from tenfold.mixing import learning_rate_scale
from tenfold.mixing.build import make_strategy


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
