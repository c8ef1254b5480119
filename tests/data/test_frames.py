"""DataFrames of pandas and Parquet files, where these packages are installed."""

import datetime

import numpy as np
import pytest
import torch

import tenfold
from tenfold.data import load
from tenfold.data.dataset_part import Columns
from tenfold.errors import DataError

pandas = pytest.importorskip("pandas")
ROWS = 60


@pytest.fixture
def frame():
    number = np.arange(ROWS)
    return pandas.DataFrame(
        {
            "area": np.where(number % 7 == 0, np.nan, 30.0 + number),
            "rooms": pandas.array([None if item % 5 == 0 else item % 4 for item in number], dtype="Int64"),
            "lift": number % 3 == 0,
            "garden": pandas.array([None if item % 6 == 0 else item % 2 == 0 for item in number], dtype="boolean"),
            "city": np.where(number % 2, "Rome", None),
            "zone": pandas.Categorical(number % 3 + 10),
            "built": pandas.date_range("1970-01-11", periods=ROWS, freq="D"),
            "sold": number % 4 > 1,
            "price": 1000.5 + number,
        }
    )


FEATURES = ("area", "rooms", "lift", "garden", "city=", "city=Rome", "zone=10", "zone=11", "zone=12", "built", "sold")


def test_every_kind_of_column(frame):
    parts = load(frame, columns=Columns(target="price"), test_fraction=0.2)
    assert parts.features == FEATURES
    assert (parts.classes, parts.outputs, parts.has_missing) == (None, 1, True)
    first = {name: parts.train.x[:, place] for place, name in enumerate(FEATURES)}
    rows = torch.tensor(parts.numbers["train"])
    assert first["built"].tolist() == (rows + 10).tolist()
    assert torch.equal(first["rooms"].isnan(), rows % 5 == 0)
    assert torch.equal(first["garden"].isnan(), rows % 6 == 0)
    assert torch.equal(first["zone=11"], (rows % 3 == 1).float())
    assert parts.train.y.flatten().tolist() == (rows + 1000.5).tolist()


@pytest.mark.parametrize(
    ("target", "names"), [("sold", ("False", "True")), ("zone", ("10", "11", "12")), ("rooms", ("0", "1", "2", "3"))]
)
def test_classes(frame, target, names):
    frame = frame.dropna(subset=["rooms"])
    parts = load(frame, columns=Columns(("area", "city"), target))
    assert (parts.classes, parts.class_names) == (len(names), names)


def test_inputs_and_target_may_come_apart(frame):
    x, y = frame.drop(columns="price"), frame["price"]
    whole = load(frame, columns=Columns(target="price"))
    for data in (
        (x, y),
        [x, y.to_frame()],
        (x, y.to_numpy()),
        ((x, y), (x[:9], y[:9])),
        {"train": (x, y), "test": (x, y)},
    ):
        parts = load(data)
        assert parts.features == whole.features
        assert parts.classes is None
        assert parts.train.y.is_floating_point()
    with pytest.raises(DataError, match="60 rows of x but 59 of y"):
        load((x, y[:59]))


def test_a_model_takes_other_frames(frame, tmp_path):
    options = {"model": "mlp", "standardize": True, "epochs": 1, "threads": 1, "runs": tmp_path}
    run = tenfold.train(data=frame, target_column="price", **options)
    other = frame.drop(columns="price")[list(reversed(frame.columns[:-1]))]
    assert np.array_equal(run.predict(frame), run.predict(other))
    assert run.predict(frame[:3]).shape == (3,)
    assert run.evaluate((other, frame["price"])) == run.evaluate(frame)
    with pytest.raises(DataError, match="city"):
        run.predict(frame.drop(columns="city"))
    with pytest.raises(DataError, match="Series"):
        run.predict(frame.iloc[0])


def test_lists_in_cells_are_refused():
    with pytest.raises(DataError, match=r"'a'.*lists"):
        load(pandas.DataFrame({"a": [[1], [2]], "b": [1.5, 2.5]}), columns=Columns(target="b"))


def test_a_parquet_file_is_read_as_the_frame_is(frame, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    frame["built"] = [datetime.date(1970, 1, 11) + datetime.timedelta(days=day) for day in range(ROWS)]
    frame.to_parquet("homes.parquet")
    frame.to_csv("homes.csv", index=False)
    files = {name: load(name, columns=Columns(target="price")) for name in ("homes.parquet", "homes.csv")}
    expected = load(frame, columns=Columns(target="price"))
    for name, parts in files.items():
        assert [feature for feature in parts.features if "zone" not in feature] == [
            item for item in FEATURES if "zone" not in item
        ], name
    assert files["homes.parquet"].features == expected.features
    assert torch.equal(files["homes.parquet"].train.x.nan_to_num(), expected.train.x.nan_to_num())


def test_columns_that_cannot_be_read_are_named(frame):
    with pytest.raises(DataError, match="area"):
        load(pandas.concat([frame, frame[["area"]]], axis=1), columns=Columns(target="price"))
    frame.loc[3, "area"] = np.inf
    with pytest.raises(DataError, match="area"):
        load(frame, columns=Columns(target="price"))
