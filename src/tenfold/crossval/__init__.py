"""Cross-validation: k models on k splits of the same data, side by side or one after another."""

from tenfold.crossval.crossval_result import CrossValidation
from tenfold.crossval.crossval_run import CrossValidationRun, check_folds, shared_data, start_processes_early
from tenfold.crossval.fold import make_fold_splits

__all__ = [
    "CrossValidation",
    "CrossValidationRun",
    "check_folds",
    "make_fold_splits",
    "shared_data",
    "start_processes_early",
]
