"""What the experiment of a cross-validation says about its folds."""

from tenfold.experiment import FOLD_FIELDS, Division, Experiment


def fold_mode(experiment: Experiment) -> str:
    """Return how the folds are trained, with "auto" resolved."""
    division, device = experiment.division, experiment.machine.device
    if division.fold_mode != "auto":
        return division.fold_mode
    if division.workers > 1:
        return "fold-by-fold"
    return "folds-over-workers" if device == "cpu" else "fused"


def fold_experiment(experiment: Experiment, name: str) -> Experiment:
    """Return the experiment that trains one fold: without folds, and with one worker unless folds train one by one."""
    defaults = Division()
    if fold_mode(experiment) == "fold-by-fold":
        division = experiment.division.model_copy(update={field: getattr(defaults, field) for field in FOLD_FIELDS})
    else:
        division = defaults
    return experiment.replace(division=division, name=f"{experiment.title}, {name}")
