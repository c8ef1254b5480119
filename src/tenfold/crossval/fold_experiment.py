"""What the experiment of a cross-validation says about its folds."""

from tenfold.experiment import FOLD_FIELDS, Division, Experiment


def resolve_fold_mode(experiment: Experiment) -> str:
    """Return how the folds are trained, with "auto" resolved."""
    division, device = experiment.division, experiment.machine.device
    if division.fold_mode != "auto":
        return division.fold_mode
    if device != "cpu":
        return "fused"
    return "fold-by-fold" if division.workers > 1 else "folds-over-workers"


def shares_folds(experiment: Experiment) -> bool:
    """Return whether each fold is trained by all workers, which average in rounds."""
    mode = resolve_fold_mode(experiment)
    return mode == "fold-by-fold" or (mode == "fused" and experiment.division.workers > 1)


def trains_folds_together(experiment: Experiment) -> bool:
    """Return whether all folds are trained together on one device, not each by itself."""
    mode, machine = resolve_fold_mode(experiment), experiment.machine
    return mode == "fused" or (mode == "data-and-folds" and (machine.device != "cpu" or machine.engine == "fused"))


def fold_experiment(experiment: Experiment, name: str) -> Experiment:
    """Return the experiment that trains one fold: without folds, and with one worker unless all share each fold."""
    defaults = Division()
    if shares_folds(experiment):
        division = experiment.division.model_copy(update={field: getattr(defaults, field) for field in FOLD_FIELDS})
    else:
        division = defaults
    return experiment.replace(division=division, name=f"{experiment.title}, {name}")
