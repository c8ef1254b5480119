"""Estimators of scikit-learn: networks that train with Tenfold, for pipelines, searches and cross-validation."""

from tenfold.sklearn.estimator import Classifier, Regressor

__all__ = ["Classifier", "Regressor"]
