"""Cross-validation: k models on k divisions of the same data, side by side or one after another."""

from tenfold.crossval.result import CrossValidation
from tenfold.crossval.setup import carry_out, ready, resident

__all__ = ["CrossValidation", "carry_out", "ready", "resident"]
