"""`tenfold.sklearn.Regressor`."""

from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data

from tenfold.sklearn.estimator import Array, Estimator


class Regressor(RegressorMixin, Estimator):  # type: ignore[misc]
    """A network that predicts numbers, as an estimator of scikit-learn.

    The parameters and attributes are those of `Classifier`, but for `classes_`. The network learns targets of mean 0
    and standard deviation 1; `predict` returns them in their own units.

    >>> from sklearn.datasets import make_regression
    >>> x, y = make_regression(200, 10, random_state=0)
    >>> Regressor(random_state=0).fit(x, y).score(x, y) > 0.9
    True
    """

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Train on inputs X (samples x features) and a number, or a row of numbers, for each."""
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32], multi_output=True, y_numeric=True)  # noqa: N806
        rows = y.astype(np.float64).reshape(len(y), -1)
        spread = rows.std(axis=0)
        self.target_mean_, self.target_scale_ = rows.mean(axis=0), np.where(spread > 0, spread, 1.0)
        self._flat_target = y.ndim == 1
        scaled = (rows - self.target_mean_) / self.target_scale_
        return self._fit(X, scaled.astype(np.float32), classes=None)

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the predicted number, or row of numbers, of each sample."""
        found = self._outputs(X) * self.target_scale_ + self.target_mean_
        return np.asarray(found[:, 0] if self._flat_target else found)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
