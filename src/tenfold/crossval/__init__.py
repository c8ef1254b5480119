"""Cross-validation: k models on k divisions of the same data, side by side or one after another."""

from tenfold.crossval.begin import carry_out, ready, resident
from tenfold.crossval.result import CrossValidation

__all__ = ["CrossValidation", "carry_out", "ready", "resident"]
