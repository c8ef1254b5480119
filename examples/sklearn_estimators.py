"""Use a network as a scikit-learn estimator: in a pipeline, cross-validation and a grid search.

Expected output (the last digits depend on the processor):

    accuracy on 3 folds: 0.92
    best width of the hidden layer: 64
    R2 of the regressor: 1.00
"""

from sklearn.datasets import load_digits, make_regression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tenfold.sklearn import Classifier, Regressor

x, y = load_digits(return_X_y=True)
classifier = make_pipeline(StandardScaler(), Classifier(epochs=5, random_state=0))
print(f"accuracy on 3 folds: {cross_val_score(classifier, x, y, cv=3).mean():.2f}")

search = GridSearchCV(classifier, {"classifier__hidden": [(8,), (64,)]}, cv=2).fit(x[:600], y[:600])
print(f"best width of the hidden layer: {search.best_params_['classifier__hidden'][0]}")

x, y = make_regression(400, 10, random_state=0)
regressor = Regressor(random_state=0).fit(x[:300], y[:300])
print(f"R2 of the regressor: {regressor.score(x[300:], y[300:]):.2f}")
