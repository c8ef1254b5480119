"""Estimators of scikit-learn: networks that train with Tenfold, for pipelines, searches and cross-validation."""

from tenfold.sklearn.classifier import Classifier
from tenfold.sklearn.regressor import Regressor

__all__ = ["Classifier", "Regressor"]
