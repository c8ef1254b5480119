"""Cross-validation: k models on k splits of the same data, trained in parallel or one after another."""

from tenfold.crossval.crossval_result import CrossValidation
from tenfold.crossval.crossval_run import (
    CrossValidationRun,
    check_folds,
    predict_fold_times,
    shared_data,
    start_processes_early,
    trained_here,
)
from tenfold.crossval.fold import make_fold_splits
