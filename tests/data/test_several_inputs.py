import warnings
from typing import NamedTuple

import numpy as np
import pytest
import torch
from looped import looped
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import tenfold
from tenfold.data import DatasetPart, Tensors, join_parts, load
from tenfold.data.dataset_part import Columns, with_loader
from tenfold.data.loading import as_splits
from tenfold.data.part import describe_shape, shape_from_record, tree_leaves
from tenfold.data.splitting import split
from tenfold.errors import DataError
from tenfold.experiment import Experiment

A = torch.rand(12, 3)
B = torch.arange(12) % 5
Y = torch.arange(12) % 4


class Rows(Dataset):
    """Samples in the form that a function makes of their number."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return self.make(i)


DICTS = Rows(lambda i: {"a": A[i], "b": int(B[i]), "labels": int(Y[i])})
LISTS = Rows(lambda i: {"a": A[i].tolist(), "b": int(B[i]), "labels": int(Y[i])})
TUPLES = Rows(lambda i: (A[i], B[i], Y[i]))
PAIRS = Rows(lambda i: ((A[i], B[i]), Y[i]))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(({"a": A, "b": B}, Y), id="dict of tensors"),
        pytest.param({"a": A, "b": B, "labels": Y}, id="columns"),
        pytest.param({"a": A.numpy(), "b": B.tolist(), "labels": Y}, id="columns of arrays and lists"),
        pytest.param({"train": {"a": A, "b": B, "labels": Y}}, id="columns of a part"),
        pytest.param(DICTS, id="Dataset of dicts"),
        pytest.param(LISTS, id="Dataset of lists of numbers"),
        pytest.param([DICTS[i] for i in range(12)], id="list of dicts"),
        pytest.param(((A, B), Y), id="tuple of tensors"),
        pytest.param(TensorDataset(A, B, Y), id="TensorDataset"),
        pytest.param(TUPLES, id="Dataset of tuples"),
        pytest.param(PAIRS, id="Dataset of pairs"),
    ],
)
@looped("loader_workers", [0, 1])
def test_several_inputs_in_every_form_and_part(data, loader_workers):
    parts = load(data, test_fraction=0.25, validation_fraction=0.2, loader_workers=loader_workers)
    assert (parts.classes, parts.outputs) == (4, 4)
    assert describe_shape(parts.shape) in ("a 3, b 1", "3, 1")
    seen = []
    for part in (parts.train, parts.validation, parts.test):
        ((x, y),) = part.batches([range(len(part))])
        a, b = x.values() if isinstance(x, dict) else x
        assert (a.dtype, b.dtype, y.dtype) == (torch.float32, torch.int64, torch.int64)
        rows = [int((A - item).abs().sum(1).argmin()) for item in a]
        assert torch.equal(b, B[rows])
        assert torch.equal(y, Y[rows])
        assert torch.equal(part.targets, y)
        seen += rows
    assert sorted(seen) == list(range(12))


def test_the_fingerprint_sees_every_input():
    one, other = (as_splits(((A, b), Y)).fingerprint() for b in (B, B + 1))
    assert one != other


def test_tensors_and_a_dataset_are_pooled():
    tensors, dataset = as_splits(((A, B), Y)).train, as_splits(TUPLES).train
    both = join_parts(tensors, dataset)
    ((x, y),) = both.batches([[3, 15]])
    assert torch.equal(x[0][0], x[0][1])
    assert y[0] == y[1]
    assert isinstance(join_parts(tensors, tensors), Tensors)
    assert isinstance(with_loader(tensors, 1), DatasetPart)
    assert len(split(as_splits(((A, B), Y)), limit=3).train) == 3


def test_names_choose_inputs_and_target():
    table = {"a": A, "b": B, "c": B, "grade": Y}
    part = as_splits(table, columns=Columns(("c", "a"), "grade")).train
    assert list(part.x) == ["c", "a"]
    assert torch.equal(part.y, Y)
    both = as_splits(table | {"y": Y}, columns=Columns(("a", "y"), "y")).train  # the network may get the target, too
    assert list(both.x) == ["a", "y"]


class Table(Rows):
    """Lists its columns and gives them whole by name, as Hugging Face's data sets do; counts what is read."""

    column_names = ("a", "label")

    def __init__(self):
        self.read = 0

    def __getitem__(self, i):
        if i == "label":
            return Y.tolist()
        self.read += 1
        return {"a": A[i].tolist(), "label": int(Y[i])}

    def __len__(self):
        return 12


def test_labels_are_read_as_a_column_where_that_is_possible():
    assert torch.equal(as_splits(Table()).train.targets, Y)


@looped(
    ("data", "columns", "message"),
    [
        ({"a": A, "grade": Y}, Columns(), "target_column"),
        ({"a": A, "label": Y, "y": Y}, Columns(), "target"),
        ({"a": A, "label": Y}, Columns(("aa",)), "a"),
        ({"a": A, "label": Y}, Columns(target="lable"), r"data\.target_column"),
        ((A, Y), Columns(target="y"), "tables"),
        (((A, B[:5]), Y), Columns(), "the train part has 5 rows of input 2 but 12 of y"),
        (({"a": A / 0, "b": B}, Y), Columns(), "NaN"),
        (
            Rows(lambda i: {"text": "good", "a": A[i], "label": 1}),
            Columns(),
            "input_columns",
        ),
        (Rows(lambda i: {"label": 1}), Columns(), "target"),
        (Rows(lambda i: int(i)), Columns(), r"should be a pair \(x, y\), a tuple \(a, b, ..., y\) or a dict"),
    ],
)
def test_what_is_wrong_is_said(data, columns, message):
    with pytest.raises(DataError, match=message):
        as_splits(data, columns=columns)


def ragged(i):
    return torch.arange(1 + i % 3), int(Y[i])


def padded(samples):
    tokens, labels = zip(*samples, strict=True)
    return torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True), torch.tensor(labels)


def test_samples_of_different_length_need_collate():
    part = as_splits(Rows(ragged)).train
    with pytest.raises(DataError, match="collate"):
        list(part.batches([[0, 1]]))
    part = as_splits(Rows(lambda i: {"tokens": ragged(i)[0], "b": 0, "label": 1 * (i > 5)})).train
    with pytest.raises(DataError, match="give collate"):
        list(part.batches([[0, 1]]))


def test_collate_makes_the_batches():
    splits = as_splits(Rows(ragged), collate=padded)
    assert splits.classes == 4
    assert torch.equal(splits.train.targets, Y)
    ((x, y),) = splits.train.subset([2, 3]).batches([[0, 1]])
    assert x.tolist() == [[0, 1, 2], [0, 0, 0]]
    assert torch.equal(y, Y[[2, 3]])


def test_collate_may_return_a_dict():
    def collate(samples):
        x, y = padded(samples)
        return {"tokens": x, "lengths": (x > 0).sum(1), "y": y}

    x, _ = next(as_splits(Rows(ragged), collate=collate).train.batches([[2, 3]]))
    assert list(x) == ["tokens", "lengths"]


def test_what_collate_cannot_do_is_said():
    with pytest.raises(DataError, match="tensors"):
        as_splits(Rows(ragged), collate=lambda samples: samples[0])
    with pytest.raises(DataError, match="integers"):
        as_splits(Rows(lambda i: A[i]), collate=lambda samples: (torch.stack(samples), torch.stack(samples).long()))
    with pytest.raises(DataError, match=r"data\.collate"):
        as_splits((A, Y), collate=padded)
    with pytest.raises(DataError, match="is built in"):
        load("digits", collate=padded)


def test_columns_in_a_dict_are_data_and_not_a_section():
    experiment = Experiment(data={"a": A, "labels": Y}, input_columns=["a"], target_column="labels")
    assert experiment.data.name.value.keys() == {"a", "labels"}
    assert experiment.data.input_columns == ("a",)
    assert Experiment(data={"limit": 3, "groups": np.arange(3)}).data.limit == 3


def test_shapes_survive_json():
    for shape in ((3,), (), ((3,), ()), {"a": (3,), "b": ()}):
        recorded = {k: list(v) for k, v in shape.items()} if isinstance(shape, dict) else [
            list(item) if isinstance(item, tuple) else item for item in shape
        ]  # fmt: skip
        assert shape_from_record(recorded) == shape
    assert tree_leaves({"a": (1, [2]), "b": 3}) == [1, 2, 3]


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Adds(nn.Module):
    """Takes its two inputs as one named tuple."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, 4)

    def forward(self, pair):
        return self.last(pair.left + pair.right)


def test_named_tuples_reach_the_network_as_such(tmp_path):
    inputs = torch.rand(40, 3)
    samples = [(Pair(item, -item), i % 4) for i, item in enumerate(inputs)]

    def collate(some):
        return Pair(torch.stack([x.left for x, _ in some]), torch.stack([x.right for x, _ in some])), torch.tensor(
            [y for _, y in some]
        )

    for options in ({}, {"collate": collate}):
        for workers in (1, 2):
            run = tenfold.train(model=Adds, data=samples, **options, workers=workers, epochs=1, runs=tmp_path)
            assert 0 <= run.accuracy <= 1


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory, self.last = nn.GRU(2, 5), nn.Linear(5, 2)

    def forward(self, packed):
        assert isinstance(packed, nn.utils.rnn.PackedSequence)
        assert packed.data.dtype == torch.float32
        _, state = self.memory(packed)
        return self.last(state[0])


def test_packed_sequences_reach_the_network_as_such(tmp_path):
    samples = [(np.full((1 + i % 4, 2), i % 2, dtype=np.float64), i % 2) for i in range(60)]

    def collate(some):
        packed = nn.utils.rnn.pack_sequence([torch.as_tensor(x) for x, _ in some], enforce_sorted=False)
        return packed, torch.tensor([y for _, y in some])

    options = {"model": Recurrent, "data": samples, "collate": collate, "runs": tmp_path}
    for workers in (1, 2):
        run = tenfold.train(**options, workers=workers, epochs=30, batch_size=8)
        assert run.accuracy > 0.9
    with pytest.raises(tenfold.TenfoldError, match="sequence"):
        tenfold.train(**options, accumulate=2, epochs=1)


def test_numbers_that_float32_does_not_tell_apart_are_noticed():
    seconds = 1.7e9 + np.arange(12.0)
    labels = np.arange(12) % 2
    for x in (seconds[:, None], torch.tensor(seconds)[:, None]):
        with pytest.warns(UserWarning, match="float32"):
            as_splits((x, labels))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        as_splits((seconds[:, None] - 1.7e9, labels))
        as_splits((np.full((12, 2), 0.1), labels))
