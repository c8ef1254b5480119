import sys
import types
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import tenfold
from tenfold.api.predict import export_program
from tenfold.data import load
from tenfold.data.dataset_part import Columns
from tenfold.data.files import read_inputs
from tenfold.data.loading import with_scaling
from tenfold.data.tables import KnownData
from tenfold.errors import DataError, TenfoldError
from tenfold.training.measures import compares_numbers

CSV = "age,city,grade,price\n31,Rome,a,1.5\n,Oslo,b,2.5\n45,Rome,a,0.5\n27,NA,b,4\n38,Oslo,a,3\n29,Rome,b,1\n"


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text(CSV)
    return "table.csv"


def whole(name, *, target, inputs=None, **options):
    """Return all rows of a table as they are read, in the order of the file."""
    parts = load(name, columns=Columns(inputs, target), test_fraction=0.34, stratify=False, **options)
    order = np.argsort(np.concatenate([parts.numbers["train"], parts.numbers["test"]]))
    x, y = (torch.cat([getattr(parts.train, side), getattr(parts.test, side)])[order] for side in "xy")
    return parts, x, y


def test_numbers_categories_and_missing_values(table):
    parts, x, y = whole(table, target="price", inputs=("age", "city"))
    assert parts.features == ("age", "city=", "city=Oslo", "city=Rome")
    assert x[:, 1:].tolist() == [[0, 0, 1], [0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert x[:, 0].isnan().tolist() == [False, True, False, False, False, False]
    assert y.tolist() == [1.5, 2.5, 0.5, 4, 3, 1]
    assert (parts.classes, parts.outputs, parts.has_missing) == (None, 1, True)
    assert parts.notes == ("regression: 'price' is predicted as a number, from 2 columns as 4 inputs "
                           "(categories are one-hot)",)  # fmt: skip
    assert parts.scaling["mean"][0] == pytest.approx(float(parts.train.x[:, 0].nanmean()))


def test_text_and_few_whole_numbers_are_classes(table, tmp_path):
    parts, _, y = whole(table, target="grade")
    assert (parts.classes, parts.class_names) == (2, ("a", "b"))
    assert y.tolist() == [0, 1, 0, 1, 0, 1]
    (tmp_path / "other.csv").write_text("x;kind\n" + "\n".join(f"{i};{10 * (i % 3)}" for i in range(12)))
    parts, _, y = whole("other.csv", target="kind")
    assert parts.class_names == ("0", "10", "20")
    assert y[:4].tolist() == [0, 1, 2, 0]


def test_targets_that_single_precision_does_not_tell_apart_are_noticed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "far.csv").write_text("a,b\n" + "".join(f"{i},{10**12 + i}\n" for i in range(40)))
    with pytest.warns(UserWarning, match="tell its values apart"):
        load("far.csv", columns=Columns(target="b"))


def test_a_frame_is_a_table():
    class Frame(types.SimpleNamespace):
        columns = ("a", "kind")

        def __getitem__(self, name):
            return getattr(self, name)

        def to_numpy(self):
            raise AssertionError("columns are read one by one")

    class Series(types.SimpleNamespace):
        def to_numpy(self):
            return self.values

    frame = Frame(a=Series(values=np.arange(12.0)), kind=Series(values=np.array(["u", "v"] * 6, dtype=object)))
    parts = load(frame, columns=Columns(target="kind"))
    assert parts.class_names == ("u", "v")
    assert parts.shape == (1,)


@pytest.mark.parametrize(
    ("content", "target", "message"),
    [
        ("a,b\n1\n", "b", r"wrong\.csv"),
        ("a,a\n1,2\n", "a", "two columns of the same name"),
        ("1,2\n3,4\n", "1", r"wrong\.csv"),
        ("a,b\n", "b", "no rows"),
        ("a,b\n1,\n2,3\n", "b", "missing"),
        ("a,b\n1,2\n", "c", r"data\.target_column"),
        ("a;b\n1,5;2\n3;4\n", "b", "decimal"),
        ("a,b\n1,u\n2,u\n", "b", "classification"),
        ("a,b\n" + "\n".join(f"name {i},{i}" for i in range(200)), "b", "'a' has 200 different texts.*omit it"),
    ],
)
def test_what_is_wrong_in_a_table_is_said(tmp_path, monkeypatch, content, target, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.csv").write_text(content)
    with pytest.raises(DataError, match=message):
        load("wrong.csv", columns=Columns(target=target))


def test_files_that_cannot_be_read_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"none\.csv"):
        load("none.csv")
    (tmp_path / "bad.npy").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"bad\.npy"):
        load("bad.npy")
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04nothing")
    with pytest.raises(DataError, match=r"bad\.npz"):
        load("bad.npz")
    np.savez("objects.npz", x=np.array([{}], dtype=object), y=np.zeros(1))
    with pytest.raises(DataError, match=r"objects\.npz"):
        load("objects.npz")
    (tmp_path / "table.xlsx").write_bytes(b"")
    with pytest.raises(DataError, match=r"table\.xlsx"):
        load("table.xlsx")
    (tmp_path / "endless.csv").write_text("a,b\n1,2\ninf,3\n")
    with pytest.raises(DataError, match="infinity"):
        load("endless.csv", columns=Columns(target="b"))
    with pytest.raises(TenfoldError, match="mnist"):
        tenfold.train(data="mnits")
    (tmp_path / "some.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match="needs the package pyarrow"):
        load("some.parquet")


def test_arrays_in_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, y = np.random.default_rng(0).random((20, 3)), np.arange(20) % 2
    np.savez("whole.npz", x=x, y=y)
    np.savez("parts.npz", x_train=x, y_train=y, x_test=x[:4], y_test=y[:4])
    np.save("table.npy", np.c_[x, y])
    assert len(load("whole.npz").train) == 16
    assert (len(load("parts.npz").train), len(load("parts.npz").test)) == (20, 4)
    parts = load("table.npy", columns=Columns(target="3"))
    assert (parts.classes, parts.shape) == (2, (3,))


def test_folders_of_images_are_classes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, shade in (("cats", 40), ("dogs", 200)):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(4):
            Image.new("L", (6, 5), shade).save(tmp_path / "pets" / name / f"{number}.png")
    parts = load("pets", test_fraction=0.25)
    assert (parts.shape, parts.classes) == ((1, 5, 6), 2)
    for x, y in zip(parts.train.x, parts.train.y, strict=True):
        assert x.unique().tolist() == pytest.approx([(40, 200)[y] / 255])
    Image.new("RGB", (9, 9)).save(tmp_path / "pets" / "cats" / "large.jpg")
    with pytest.raises(DataError, match=r"data\.options"):
        load("pets")
    assert load("pets", options={"size": 4}).shape == (3, 4, 4)
    (tmp_path / "pets" / "dogs" / "no.png").write_text("no image")
    with pytest.raises(DataError, match=r"no.png cannot be read"):
        load("pets", options={"size": 4})
    with pytest.raises(DataError, match="images"):
        load("pets/cats")
    (tmp_path / "pets" / "dogs" / "no.png").unlink()
    (tmp_path / "pets" / ".hidden").mkdir()
    assert load("pets", options={"size": 4}).class_names == ("cats", "dogs")
    (tmp_path / "pets" / "raw").mkdir()
    with pytest.raises(DataError, match="images"):
        load("pets")
    with pytest.raises(DataError, match="big"):
        load("pets", options={"size": "big"})


def test_images_to_predict_are_those_a_user_sees_on_the_scale_of_training(tmp_path):
    for name, shade in (("a.png", 255), ("b/c.png", 128), (".thumbs/d.png", 0), ("b/.e.png", 0)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("L", (8, 8), shade).save(tmp_path / name)
    for data, values in (("photos", [255, 128]), ("mnist", [255, 128]), ("digits", [16, 8])):
        found = read_inputs(tmp_path, {"name": data, "shape": [1, 8, 8]}, {})
        assert found.names == ["a.png", "b/c.png"]
        assert found.x[:, 0, 0, 0].tolist() == values
    with pytest.raises(DataError, match="images"):
        read_inputs(tmp_path, {"name": "speech", "shape": [1, 8, 8]}, {})
    Image.new("L", (5, 5)).save(tmp_path / "small.png")
    with pytest.raises(DataError, match=r"data\.options"):
        read_inputs(tmp_path, {"name": "photos", "shape": [1, 8, 8]}, {})


@pytest.mark.filterwarnings("error")
def test_categories_that_are_numbers_are_known_by_their_text():
    ratings = {"rating": np.array([1.0, 2.5]), "code": ["01", "1"]}
    known = KnownData(("rating=1", "rating=2.5", "code=01", "code=1"))
    assert known.inputs(ratings, "x").tolist() == [[1, 0, 1, 0], [0, 1, 0, 1]]
    with pytest.warns(UserWarning, match="not trained on, in 1 of 1 rows: '1'"):
        assert KnownData(("code=01",)).inputs({"code": ["1"]}, "x").tolist() == [[0]]


def test_every_fold_is_standardized_by_its_own_training_part(tmp_path):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=generator) * torch.tensor([1.0, 100.0, 0.01]) + 50
    y = (x[:, 1] > 50).long()
    found = tenfold.cross_validate(
        model="mlp", data=(x, y), standardize=True, folds=3, fold_mode="stacked", epochs=5, lr=0.02, runs=tmp_path
    )
    parts = load((x, y))
    sets = {tuple(run.weights["input_mean"].tolist()) for run in found.runs}
    assert len(sets) == 3
    for run in found.runs:
        assert run.accuracy > 0.7
        assert run.model(x[:4]).shape == (4, 2)  # takes inputs as they were given
        assert run.weights["input_deviation"][1] == pytest.approx(100, rel=0.4)
    ten = with_scaling(replace(parts, train=parts.train.subset(range(10))), inputs=True)
    assert ten.scaling["mean"].tolist() == pytest.approx(parts.train.x[:10].mean(0).tolist(), rel=1e-5)


def test_inputs_that_are_not_scaled_are_noticed():
    x, y = torch.rand(40, 2) * torch.tensor([1.0, 5000.0]), torch.arange(40) % 2
    with pytest.warns(UserWarning, match="standardize"):
        load((x, y))
    with pytest.warns(UserWarning, match="scaled"):
        load((x, torch.full((40,), 5000.0)), standardize=True, standardize_targets=False)
    with pytest.raises(DataError, match=r"data\.standardize"):
        load(((x, x), y), standardize=True)


def make_prices(rows=400):
    """Return a table of homes whose prices are about 3e5 +- 1.9e5, and mostly follow from the inputs."""
    generator = np.random.default_rng(0)
    area, age = generator.normal(120, 40, rows), generator.uniform(0, 80, rows)
    noise = generator.normal(0, 1e4, rows)
    return {"area": area, "age": age, "price": 3e5 + 4500 * (area - 120) - 2000 * (age - 40) + noise}


def write_table(columns, path):
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_prices_are_learned_and_predicted_in_their_units(tmp_path):
    table = make_prices()
    file = write_table(table, tmp_path / "homes.csv")
    spread = float(np.std(table["price"]))
    options = {"model": "mlp", "target_column": "price", "metrics": "rmse", "epochs": 60, "threads": 1}
    run = tenfold.train(data=file, **options, runs=tmp_path)
    assert run.metrics["rmse"] < 0.2 * spread
    assert run.metrics["loss"] == pytest.approx((run.metrics["rmse"] / spread) ** 2, rel=0.2)
    inputs = {name: table[name][:50] for name in ("area", "age")}
    predicted = tenfold.open_run(run.id, runs=tmp_path).predict(inputs)
    assert np.sqrt(np.mean((predicted - table["price"][:50]) ** 2)) < 0.2 * spread
    assert run.evaluate() == pytest.approx(run.metrics)
    assert run.evaluate(file)["rmse"] < 0.2 * spread
    export_program(run, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    x = torch.tensor(np.stack(list(inputs.values()), 1), dtype=torch.float32)
    assert program(x)[:, 0].tolist() == pytest.approx(predicted.tolist(), rel=1e-4)
    with pytest.warns(UserWarning, match="targets are not scaled"):
        assert load(file, columns=Columns(None, "price"), standardize=False).scaling is None


@pytest.mark.parametrize("mode", ["stacked", "folds-over-workers"])
def test_every_fold_standardizes_targets_by_its_own_training_part(tmp_path, mode):
    table = make_prices()
    x, y = np.stack([table["area"], table["age"]], 1), table["price"]
    found = tenfold.cross_validate(
        model="mlp", data=(x, y), standardize=True, metrics="rmse", folds=3, fold_mode=mode, epochs=40, runs=tmp_path
    )
    means = {float(run.weights["target_mean"]) for run in found.runs}
    assert len(means) == 3
    assert all(abs(mean - y.mean()) < 0.2 * y.std() for mean in means)
    assert all(run.metrics["rmse"] < 0.25 * y.std() for run in found.runs)


def test_workers_and_the_virtual_cluster_learn_the_same_prices(tmp_path):
    table = make_prices()
    data = (np.stack([table["area"], table["age"]], 1), np.stack([table["price"], table["age"]], 1))
    options = {"model": "mlp", "data": data, "standardize": True, "epochs": 10, "workers": 2, "threads": 1}
    run = tenfold.train(**options, metrics="rmse", runs=tmp_path)
    cluster = {"groups": [{"count": 2, "step_seconds": 0.01}]}
    twin = tenfold.simulate(**options, cluster=cluster, metrics="rmse", runs=tmp_path)
    assert all(torch.equal(item, twin.weights[name]) for name, item in run.weights.items())
    assert run.predict(data[0]).std(0) == pytest.approx(data[1].std(0), rel=0.5)


def test_targets_of_other_losses_are_left_as_they_are():
    x, y = torch.randn(40, 2), torch.arange(40.0) % 2
    training = tenfold.Experiment().replace(loss="bce").training
    assert not compares_numbers(training)
    assert not compares_numbers(training.model_copy(update={"loss": None}).model_copy(update={"loss": "network"}))
    assert "target_mean" not in load((x, y), standardize=True, standardize_targets=False).scaling
    assert "target_mean" not in load((x, y.long()), standardize=True).scaling
