"""The estimators keep scikit-learn's contract, and fit into its pipelines and searches."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris, make_regression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import tenfold
from tenfold.errors import ExperimentError, TenfoldError
from tenfold.sklearn import Classifier, Regressor

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("_workers_with_imports")]
FAST = {"epochs": 6, "threads": 1}
X, Y = load_iris(return_X_y=True)


CHECKED = {"epochs": 12, "threads": 1}


@pytest.mark.parametrize("estimator", [Classifier(**CHECKED), Regressor(**CHECKED)], ids=lambda one: type(one).__name__)
def test_scikit_learn_accepts_it(estimator):
    from sklearn.utils.estimator_checks import check_estimator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of checks that are skipped
        results = check_estimator(estimator, on_skip=None)
    assert sum(result["status"] == "passed" for result in results) > 55


@pytest.mark.parametrize("kind", [Classifier, Regressor])
def test_a_weight_is_as_many_samples(kind):
    y = Y if kind is Classifier else X[:, 0] + X[:, 1]
    weights = np.random.default_rng(0).integers(0, 4, len(X))
    model = kind(random_state=0, epochs=30, threads=1, batch_size=1000)
    weighted = model.fit(X, y, sample_weight=weights)._outputs(X)
    repeated = clone(model).fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))._outputs(X)
    np.testing.assert_allclose(weighted, repeated, atol=1e-9)
    plain = clone(model).fit(X, y)._outputs(X)
    assert np.abs(weighted - plain).max() > 1e-2


@pytest.mark.parametrize("fields", [{}, {"workers": 2}, {"validation_fraction": 0.3, "patience": 50}])
def test_classes_have_weights(fields):
    rng = np.random.default_rng(0)
    y = (rng.random(400) < 0.1).astype(int)
    x = rng.normal(size=(400, 2)) + y[:, None]
    model = Classifier(random_state=0, epochs=20, threads=1, **fields)
    found = {
        name: clone(model).set_params(class_weight=weight).fit(x, y).predict(x).mean()
        for name, weight in {"none": None, "balanced": "balanced", "dict": {0: 1.0, 1: 9.0}}.items()
    }
    assert found["none"] < 0.15
    assert found["balanced"] > 0.2
    assert found["dict"] > 0.2


def test_weights_that_cannot_be_used_are_refused(tmp_path):
    for weights in (np.ones(3), -np.ones(150), np.full(150, np.nan)):
        with pytest.raises(ValueError, match="sample_weight"):
            Classifier(**FAST).fit(X, Y, sample_weight=weights)
    with pytest.raises(ExperimentError, match="reduction"):
        Classifier(loss=lambda outputs, targets: outputs.mean(), **FAST).fit(X, Y, sample_weight=np.ones(150))
    with pytest.raises(ExperimentError, match="metrics"):
        Classifier(fields={"metrics": "f1_macro"}, **FAST).fit(X, Y, sample_weight=np.ones(150))
    fitted = Classifier(loss=nn.CrossEntropyLoss(), runs=tmp_path, validation_fraction=0.2, **FAST).fit(
        X, Y, sample_weight=1 + Y
    )
    assert 0 < fitted.history_[-1]["validation_accuracy"] <= 1
    assert fitted.run_.report(tmp_path / "fit.html").exists()


@pytest.mark.parametrize("kind", [Classifier, Regressor])
def test_data_may_come_in_pieces(kind):
    order = np.random.default_rng(0).permutation(len(X))
    x = StandardScaler().fit_transform(X[order])
    y = Y[order] if kind is Classifier else 1000.0 * X[order, 0]
    model = kind(random_state=0, threads=1, batch_size=16)
    scores = []
    for _ in range(20):
        for rows in np.array_split(np.arange(len(x)), 3):
            first = {"classes": [0, 1, 2]} if kind is Classifier and not scores else {}
            model.partial_fit(x[rows], y[rows], **first)
        scores.append(model.score(x, y))
    assert scores[-1] > 0.85
    assert model.n_iter_ == 60


def test_pieces_have_the_classes_of_the_first_one():
    with pytest.raises(ValueError, match="needs `classes`"):
        Classifier(**FAST).partial_fit(X, Y)
    with pytest.raises(ValueError, match="label 2"):
        Classifier(**FAST).partial_fit(X, Y, classes=[0, 1])
    with pytest.raises(ValueError, match="balanced"):
        Classifier(class_weight="balanced").partial_fit(X, Y, classes=[0, 1, 2])
    fitted = Classifier(**FAST).partial_fit(X[:60], Y[:60], classes=[0, 1, 2])
    assert fitted.predict_proba(X).shape == (150, 3)
    with pytest.raises(ValueError, match="first call"):
        fitted.partial_fit(X, Y, classes=[0, 1])


@pytest.mark.parametrize("kind", [Classifier, Regressor])
def test_a_warm_start_continues(kind):
    y = Y if kind is Classifier else X[:, 0] * 5 + 100
    losses = {}
    for warm in (False, True):
        model = kind(random_state=0, threads=1, epochs=3, hidden=(8,), warm_start=warm)
        losses[warm] = [model.fit(X, y).history_[0]["train_loss"] for _ in range(3)]
    assert losses[False][0] == losses[False][2] == losses[True][0]
    assert losses[True][2] < losses[True][1] < losses[True][0]
    with pytest.raises(ValueError, match="features"):
        model.fit(X[:, :2], y)


def test_workers_may_be_counted_here(monkeypatch):
    monkeypatch.setattr("tenfold.machine.cores.budget", lambda: 1)
    fitted = Classifier(workers="auto", random_state=0, threads=1).fit(X, Y)
    assert fitted.result_["workers"] == 1


def test_it_works_in_a_pipeline_and_in_a_search():
    model = make_pipeline(StandardScaler(), Classifier(random_state=0, **FAST))
    search = GridSearchCV(model, {"classifier__hidden": [(4,), (64,)]}, cv=2).fit(X, Y)
    assert search.best_score_ > 0.8
    assert search.best_estimator_.predict_proba(X[:5]).shape == (5, 3)
    assert search.best_estimator_[-1].n_features_in_ == 4


def test_labels_of_any_kind_come_back():
    names = np.array(["setosa", "versicolor", "virginica"])[Y]
    fitted = Classifier(random_state=0, epochs=60, threads=1).fit(X, names)
    assert list(fitted.classes_) == ["setosa", "versicolor", "virginica"]
    assert (fitted.predict(X) == names).mean() > 0.9


def test_the_same_random_state_gives_the_same_network_and_a_pickle_predicts_the_same():
    one, other = (Classifier(random_state=3, **FAST).fit(X, Y) for _ in range(2))
    again = pickle.loads(pickle.dumps(one))
    for fitted in (other, again):
        np.testing.assert_array_equal(one.predict_proba(X), fitted.predict_proba(X))
    different = clone(one).set_params(random_state=4).fit(X, Y)
    assert not np.array_equal(one.predict_proba(X), different.predict_proba(X))


def test_a_network_of_your_own_gets_samples_of_the_shape_it_wants():
    seen = []

    def network(shape, outputs, width=4):
        seen.append((shape, outputs, width))
        return nn.Sequential(nn.Conv2d(1, width, 3), nn.ReLU(), nn.Flatten(), nn.Linear(width * 36, outputs))

    x, y = load_digits(return_X_y=True)
    fields = {"model_options": {"width": 6}}
    fitted = Classifier(network, input_shape=(1, 8, 8), fields=fields, random_state=0, **FAST).fit(x / 16, y)
    assert set(seen) == {((1, 8, 8), 10, 6)}
    assert fitted.score(x / 16, y) > 0.8


def test_targets_keep_their_units_and_rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    y = np.stack([1e6 + 1e5 * x[:, 0], 1e-3 * x[:, 1]], axis=1)
    fitted = Regressor(random_state=0, epochs=40, threads=1).fit(x, y)
    assert fitted.score(x, y) > 0.9
    assert fitted.predict(x[:7]).shape == (7, 2)
    assert Regressor(**FAST).fit(x, y[:, 0]).predict(x[:7]).shape == (7,)


def test_validation_and_patience_and_callbacks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    class Stop:
        def on_epoch_end(self, event):
            assert event.metrics.keys() == {"train_loss", "train_accuracy", "validation_loss", "validation_accuracy"}
            if event.epoch == 1:
                raise tenfold.StopTraining

    fitted = Classifier(validation_fraction=0.2, patience=5, callbacks=[Stop()], **FAST).fit(X, Y)
    assert fitted.n_iter_ == len(fitted.history_) == 2
    assert fitted.history_[0].keys() == {"epoch", "step", "seconds", *fitted.history_[0]}
    assert fitted.run_ is None
    assert not list(tmp_path.iterdir()), "nothing is recorded unless asked for"


def test_fits_are_recorded_where_runs_are_wanted(tmp_path):
    fitted = Classifier(runs=tmp_path, random_state=0, **FAST).fit(X, Y)
    (run,) = tenfold.list_runs(runs=tmp_path)
    assert (run.kind, run.status, run.id) == ("fit", "finished", fitted.run_.id)
    assert run.metadata["data"]["test"] == 0
    assert [row["train_loss"] for row in run.history] == [row["train_loss"] for row in fitted.history_]


def test_workers_divide_the_data():
    fitted = Classifier(workers=2, random_state=0, epochs=30, threads=1).fit(X, Y)
    assert fitted.result_["workers"] == 2
    assert fitted.score(X, Y) > 0.8


@pytest.mark.parametrize(
    ("parameters", "error", "reason"),
    [
        ({"optimizer": "sgdd"}, TenfoldError, "did you mean 'sgd'"),
        ({"fields": {"epoch": 3}}, ExperimentError, "did you mean training.epochs"),
        ({"patience": 2}, ExperimentError, "validation_fraction"),
        ({"epochs": 0}, ExperimentError, r"training\.epochs"),
        ({"fields": {"target": 99.0}}, ExperimentError, "accuracy"),
        ({"fields": {"engine": "virtual"}}, ExperimentError, "estimator"),
    ],
)
def test_a_wrong_parameter_is_explained(parameters, error, reason):
    with pytest.raises(error, match=reason):
        Classifier(**parameters).fit(X, Y)


def test_the_default_network_and_length_follow_the_data():
    made = Classifier().fit(X, Y).experiment_
    assert (made.model.name, made.model.hidden, made.training.epochs) == ("mlp", (32,), 100)
    digits = load_digits(return_X_y=True)
    made = Classifier().fit(*digits).experiment_
    assert (made.model.hidden, made.training.epochs) == ((256,), 11)


def test_the_network_of_a_regressor_predicts_in_the_units_of_the_targets(tmp_path):
    x, y = make_regression(200, 5, random_state=0)
    y = 3e5 + 1.9e5 * y / y.std()
    model = Regressor(random_state=0, runs=tmp_path).fit(x, y)
    assert model.score(x, y) > 0.9
    run = tenfold.open_run(runs=tmp_path)
    assert run.predict(x.astype(np.float32)) == pytest.approx(model.predict(x), rel=1e-3)
