import sys

import numpy as np
import pytest
import scipy.sparse
import torch
from looped import looped
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

import tenfold
from tenfold.data import DatasetPart, Tensors, load
from tenfold.data.loading import as_splits
from tenfold.data.splitting import split
from tenfold.data.user_datasets import ValueRules
from tenfold.engines.prepare import prepare
from tenfold.errors import DataError, ExperimentError, TenfoldError
from tenfold.experiment import Experiment
from tenfold.reports.summary import model_quality
from tenfold.training.metrics import accuracy
from tenfold.workers.task import Resolved

X = torch.rand(12, 3)
Y = torch.arange(12) % 4


class Items(Dataset):
    """A map-style data set over X and Y that counts how often it is read."""

    def __init__(self, y=Y, **attributes):
        self.y = y
        self.read = 0
        self.__dict__.update(attributes)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        self.read += 1
        return X[i % 12], self.y[i]


@looped(
    ("y", "expected"),
    [
        (Y, 1),
        (torch.rand(12), 1),
        (torch.rand(12, 5), 1),  # one target of five numbers
        (Y[:, None].expand(12, 5), 5),
        (torch.where(torch.arange(5) < 2, Y[:, None], -100), 2),
        (Y[:, None, None].expand(12, 4, 3), 12),
    ],
)
def test_labels_of_a_sample_are_counted(y, expected):
    assert as_splits((X, y.contiguous())).labels_per_sample == expected
    assert as_splits(Items(y.contiguous())).labels_per_sample == expected


def test_a_label_for_each_of_very_many_positions_is_counted_in_the_first_sample(monkeypatch):
    monkeypatch.setattr("tenfold.data.user_datasets._MOST_LABELS_KEPT", 10)
    assert as_splits(Items(Y[:, None].expand(12, 5).contiguous())).labels_per_sample == 5


def samples(data=None, *, count=12):
    return data or (X[:count], Y[:count])


@pytest.mark.parametrize(
    "data",
    [
        pytest.param((X, Y), id="tensors"),
        pytest.param([X, Y], id="list"),
        pytest.param((X.numpy(), Y.numpy()), id="arrays"),
        pytest.param((X.double().numpy(), Y.numpy().astype(np.uint8)), id="other types"),
        pytest.param((X, Y.tolist()), id="a list of labels"),
        pytest.param((X, list(Y.numpy())), id="a list of NumPy's numbers"),
        pytest.param(TensorDataset(X, Y), id="TensorDataset"),
        pytest.param(((X, Y),), id="one part"),
        pytest.param(lambda: (X, Y), id="callable"),
        pytest.param({"train": (X, Y)}, id="dict"),
    ],
)
def test_undivided_tensors_in_every_form(data):
    splits = as_splits(data)
    assert isinstance(splits.train, Tensors)
    assert torch.equal(splits.train.x, X)
    assert torch.equal(splits.train.y, Y)
    assert (splits.validation, splits.test) == (None, None)
    assert (splits.shape, splits.classes, splits.outputs) == ((3,), 4, 4)


@looped(
    ("data", "names"),
    [
        (((X, Y), (X, Y)), {"train", "test"}),
        ([[X, Y], TensorDataset(X, Y)], {"train", "test"}),
        ((Items(), Items()), {"train", "test"}),
        ((Items(), (X, Y), (X, Y)), {"train", "validation", "test"}),
        ({"train": (X, Y), "validation": Items(), "test": None}, {"train", "validation"}),
        ({"test": (X, Y), "train": Items()}, {"train", "test"}),
    ],
)
def test_parts_in_every_form(data, names):
    splits = as_splits(data)
    assert {name for name in ("train", "validation", "test") if getattr(splits, name) is not None} == names
    assert splits.classes == 4


def test_splits_stay_as_they_are():
    splits = as_splits((X, Y))
    assert as_splits(splits) is splits


def test_a_callable_gets_the_options():
    assert len(as_splits(samples, {"count": 5}).train) == 5
    assert as_splits(samples).name == "samples"


def test_an_import_path_is_called_and_names_the_data(tmp_path, monkeypatch):
    (tmp_path / "given_by_path.py").write_text(
        "import torch\ndef make(n=4):\n    return torch.rand(n, 2), torch.rand(n)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    splits = as_splits("given_by_path:make", {"n": 6})
    assert len(splits.train) == 6
    assert splits.name == "given_by_path:make"
    with pytest.raises(DataError, match="make"):
        as_splits("given_by_path:mak")


def test_uint8_images_become_floats_between_0_and_1():
    splits = as_splits((np.full((4, 1, 2, 2), 255, dtype=np.uint8), np.array([0, 1, 0, 1])))
    assert splits.train.x.dtype == torch.float32
    assert splits.train.x.max() == 1


def test_tokens_stay_integers():
    assert as_splits((np.ones((4, 5), dtype=np.int32), np.array([0, 1, 0, 1]))).train.x.dtype == torch.int64


def test_arrays_that_torch_dislikes_are_taken():
    frozen = X.numpy()[::-1]
    frozen.flags.writeable = False
    assert torch.equal(as_splits((frozen, Y.numpy().astype(">i4"))).train.x, X.flip(0))


@pytest.mark.parametrize(("y", "outputs"), [(torch.rand(12), 1), (torch.rand(12, 5).double(), 5)])
def test_float_targets_are_a_regression(y, outputs):
    for data in ((X, y), Items(y)):
        splits = as_splits(data)
        assert (splits.classes, splits.outputs) == (None, outputs)
        assert next(splits.train.batches([[0, 1]]))[1].dtype == torch.float32


def test_classes_are_counted_over_all_parts():
    assert as_splits(((X, Y * 0), (X, Y))).classes == 4


@pytest.mark.parametrize("name", ["targets", "labels"])
def test_labels_that_a_dataset_lists_are_not_read_one_by_one(name):
    many = Y.repeat(100)
    dataset = Items(many, **{name: many.tolist()})
    splits = as_splits(dataset)
    assert isinstance(splits.train, DatasetPart)
    assert torch.equal(splits.train.targets, many)
    assert dataset.read < 50


def test_labels_are_found_through_subsets_and_joined_datasets():
    many = Y.repeat(100)
    dataset = Items(many, targets=many)
    assert as_splits(Subset(dataset, [5, 1])).train.targets.tolist() == [1, 1]
    assert as_splits(ConcatDataset([dataset, Subset(dataset, [3])])).train.targets.tolist() == [*many.tolist(), 3]
    assert dataset.read < 100


@pytest.mark.parametrize("listed", [None, (Y + 1).tolist(), Y[:3], ["a"] * 12, [[1], [2, 3]]])
def test_labels_that_a_dataset_does_not_list_rightly_are_read(listed):
    dataset = Items(targets=listed)
    assert torch.equal(as_splits(dataset).train.targets, Y)
    assert dataset.read >= 12


def test_labels_that_samples_carry_in_another_form_are_read():
    listed = 1 + torch.arange(300) % 9
    splits = as_splits(Items(listed % 2, targets=listed))  # the first sample's is the same either way
    assert torch.equal(splits.train.targets, listed % 2)
    assert splits.classes == 2


def test_what_is_no_number_among_listed_targets_is_refused():
    listed = torch.tensor([0.5, float("nan"), 1.5])
    with pytest.raises(DataError, match="NaN"):
        as_splits(Items(listed, targets=listed))


def test_anything_with_length_and_items_is_a_dataset():
    class Plain:
        def __len__(self):
            return 2

        def __getitem__(self, i):
            return np.zeros(3), i

    assert as_splits(Plain()).classes == 2


def test_reading_labels_leaves_the_generators_alone():
    class Noisy(Items):
        def __getitem__(self, i):
            return torch.rand(3), int(torch.randint(3, ()))

    before = torch.get_rng_state()
    as_splits(Noisy())
    assert torch.equal(before, torch.get_rng_state())


class Endless(IterableDataset):
    def __iter__(self):
        yield X[0], 1


class NoLength(Dataset):
    def __getitem__(self, i):
        return X[0], 1


class Negative(NoLength):
    def __len__(self):
        return -1


class Unlabeled(NoLength):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        return X[0], None if i == 5 else i % 2


class Strange(Items):
    def __init__(self, sample):
        super().__init__()
        self.sample = sample

    def __getitem__(self, i):
        return self.sample


HOLED = X.clone()
HOLED[7, 1] = float("nan")


@looped(
    ("data", "message"),
    [
        ((X, X, X), "built-in"),
        (None, "NoneType"),
        (3, "an object of type int"),
        ((X, Y, Y), "Tensor"),
        (([1, 2], [0, 1]), r"a tuple of 2 \(list, list\)"),
        ((), "a tuple of 0"),
        ([1] * 9, r"a list of 9 \(int, int, int, int, ...\)"),
        ({"trian": (X, Y)}, "train"),
        ({"test": (X, Y)}, "needs the key 'train'"),
        ({"train": 5}, "object"),
        (lambda: "mnist", "object"),
        (Endless(), "a stream of labels.*set classes"),
        (NoLength(), "has no __len__"),
        (Unlabeled(), "the label of sample 5 of the train part should be a whole number"),
        (Negative(), "__len__"),
        ((X, Y[:5]), "the train part has 12 rows of x but 5 of y"),
        (((X, Y), (X[:0], Y[:0])), "the test part is empty"),
        (Items(Y[:0]), "the train part is empty"),
        ((HOLED, Y), "NaN"),
        ((X, torch.full((12,), float("inf"))), "NaN"),
        ((X, Y - 1), "integers"),
        (Items(Y - 1), "the train part has the label -1"),
        ((X.numpy(), np.array(["cat"] * 12)), "cat"),
        ((X.numpy(), np.array([b"cat", b"dog"] * 6)), "classes"),
        ((X.numpy().astype("datetime64[s]"), Y), "datetime64"),
        ((X.to(torch.complex64), Y), r"torch\.complex64"),
        (
            (X, torch.stack([Y - 1, Y], 1)),
            "positions",
        ),
        ((list(X), Y), "arrays"),
        ((X[:, 0], Y), r"x of the train part has shape \(12,\)"),
        ((X, Y * 1000), "largest"),
        (((X, Y), (X[:, :2], Y)), r"samples of the test part have shape \(2,\), those of train \(3,\)"),
        (((X, Y), (X, Y.float())), "the test part has float targets of width 1, train has labels"),
        (Strange({"x": 1}), "target_column"),
        (Strange(("word",)), "a sample of the train part is a str; it should be a pair"),
        (Strange((b"jpeg", 2)), "x of a sample of the train part is a bytes"),
        (Strange((X[0], "cat")), "y of a sample of the train part is a str"),
        (Strange((X[0], torch.tensor([1, 0]))), "integers"),
        (Strange((X[0], torch.tensor([3]))), r"the label of a sample of the train part has the shape \(1,\)"),
        ([(X[0], torch.arange(3 + i)) for i in range(4)], "shapes"),
        ("nowhere_at_all:make", "there is no module 'nowhere_at_all'"),
        ((X.to_sparse(), Y), "to_dense"),
        ((scipy.sparse.csr_array(X.numpy()), Y), "convert"),
        ((X, Y.to_sparse()), "sparse"),
        ((X, []), "Tensor"),
        (scipy.sparse.csr_array(X.numpy()), "sparse"),
        (Strange((X[0].to_sparse(), 1)), "sparse"),
        ((X, torch.zeros(len(X), dtype=torch.int64)), "classif"),
    ],
)
def test_what_is_not_understood_is_explained(data, message):
    with pytest.raises(DataError, match=message):
        as_splits(data)


def test_positions_without_a_label_are_no_class():
    labels = torch.zeros(len(X), 3, dtype=torch.int64)
    labels[:, 0] = -100
    with pytest.raises(DataError, match="classification"):
        as_splits((X, labels))


def test_options_need_something_that_takes_them():
    with pytest.raises(DataError, match="options"):
        as_splits((X, Y), {"count": 3})
    with pytest.raises(DataError, match="unexpected keyword argument 'conut'"):
        as_splits(samples, {"conut": 3})


class Counting(torch.utils.data.Dataset):
    """Samples without a list of their labels; it counts how often one is read."""

    def __init__(self, samples=20_000, classes=None):
        self.samples, self.read = samples, 0
        if classes is not None:
            self.classes = classes

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        self.read += 1
        return torch.tensor([float(index % 3), 1.0]), index % 3


def test_labels_are_read_once_and_only_if_something_needs_them(monkeypatch):
    monkeypatch.setattr("tenfold.data.user_datasets._SECONDS_BEFORE_WARNING", 0.0)
    many = Counting()
    with pytest.warns(UserWarning, match="classes ="):
        assert as_splits(many).classes == 3
    assert many.read < 20_200
    assert as_splits(many).classes == 3
    assert many.read < 20_400
    for dataset, rules in ((Counting(), ValueRules(3)), (Counting(classes=["a", "b", "c"]), ValueRules())):
        splits = load((dataset, Counting(10)), rules=rules)
        assert splits.classes == 3
        assert dataset.read < 100
        assert splits.train.targets is None
        assert splits.train.read_targets().tolist()[:4] == [0, 1, 2, 0]
        assert dataset.read < 20_200
        splits.train.subset([1, 2]).read_targets()
        splits.train.read_targets()
        assert dataset.read < 20_200


def test_labels_that_were_not_read_are_checked_in_their_batches():
    splits = load((Counting(50), Counting(10)), rules=ValueRules(2))
    with pytest.raises(DataError, match=r"label 2.*classes = 2"):
        next(splits.train.batches([range(10)]))
    with pytest.raises(DataError, match="classes"):
        load((X, X[:, 0]), rules=ValueRules(4))
    assert load((X, Y), rules=ValueRules(7)).outputs == 7


def test_the_number_of_classes_is_enough_to_train_on(tmp_path):
    data = Counting(400)
    run = tenfold.train(model="mlp", data=(data, Counting(30)), classes=3, epochs=1, runs=tmp_path)
    assert run.metadata["data"]["classes"] == 3
    assert 400 < data.read < 700  # an epoch, and some samples to describe the data by
    skewed = tenfold.train(
        model="mlp", data=(data, Counting(30)), classes=3, shards="label-skew", workers=2, epochs=1, runs=tmp_path
    )
    assert sum(skewed.metadata["shards"]["samples"]) == 400


def test_masked_values_are_refused():
    masked = np.ma.masked_less(X.numpy(), -10)
    assert torch.equal(as_splits((masked, Y)).train.x, X)
    masked[2, 0] = np.ma.masked
    with pytest.raises(DataError, match="masked"):
        as_splits((masked, Y))
    with pytest.raises(DataError, match="masked"):
        as_splits([(row, 0) for row in masked[2:]])


def test_words_as_labels_are_numbered_and_keep_their_names(tmp_path):
    words = np.array(["cat", "dog", "bee"])[Y.numpy() % 3]
    for labels in (words, words.astype(object), words[:, None], words.tolist()):
        splits = as_splits((X, labels))
        assert splits.class_names == ("bee", "cat", "dog")
        assert [splits.class_names[place] for place in splits.train.targets] == words.tolist()
    both = as_splits({"train": (X, words), "test": (X[:2], ["dog", "bee"])})
    assert both.test.targets.tolist() == [2, 0]
    with pytest.raises(DataError, match="words"):
        as_splits(((X, words), (X, Y)))
    run = tenfold.train(model="mlp", data=(X, words), epochs=1, runs=tmp_path)
    assert run.metadata["data"]["class_names"] == ["bee", "cat", "dog"]
    assert run.evaluate((X[:3], ["dog", "dog", "cat"]))["accuracy"] >= 0
    with pytest.raises(TenfoldError, match="cow"):
        run.evaluate((X[:3], ["dog", "cow", "cat"]))


def test_inputs_alone_are_their_own_targets(tmp_path):
    whole = as_splits(X)
    assert torch.equal(whole.train.y, X)
    assert whole.outputs == X.shape[1]
    pixels = torch.randint(0, 256, (20, 1, 4, 4), dtype=torch.uint8)
    assert torch.equal(as_splits(pixels).train.y, pixels.float() / 255)
    for dataset in (list_of_inputs := torch.utils.data.TensorDataset(X), Inputs(X)):
        part = as_splits(dataset).train
        x, y = next(part.batches([[0, 3]]))
        assert torch.equal(x, y)
    assert len(list_of_inputs) == len(X)
    with pytest.raises(DataError, match="cannot be used as data"):
        as_splits((X, X, Y.float()))
    seen = []

    def loss(outputs, targets):
        seen.append(targets)
        return (outputs - targets).abs().mean()

    run = tenfold.train(model="mlp", data=X, loss=loss, epochs=1, runs=tmp_path)
    assert seen[0].shape[1:] == X.shape[1:]
    assert run.predict(X).shape == X.shape


class Inputs(torch.utils.data.Dataset):
    def __init__(self, inputs):
        self.inputs = inputs

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index]


def test_a_loss_of_your_own_may_know_labels_below_0(tmp_path):
    signs = torch.arange(len(X)) % 2 * 2 - 1
    with pytest.raises(DataError, match=r"label -1.*your own loss"):
        tenfold.train(model="mlp", data=(X, signs), runs=tmp_path)

    def hinge(outputs, targets):
        return (1 - outputs * targets).clamp(min=0).mean()

    run = tenfold.train(model=lambda: nn.Linear(X.shape[1], 1), data=(X, signs), loss=hinge, epochs=2, runs=tmp_path)
    assert 0 <= run.accuracy <= 1
    ignored = torch.arange(len(X)) % 3 - 1
    run = tenfold.train(
        model="mlp", data=(X, ignored), loss=nn.CrossEntropyLoss(ignore_index=-1), epochs=1, runs=tmp_path
    )
    assert run.metadata["data"]["classes"] == 2
    assert run.predictions_on("test").confusion().sum() == (run.predictions_on("test").targets >= 0).sum()
    assert model_quality(run)["classes"] == 2
    assert accuracy(torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), torch.tensor([-1, 0, 1])) == 0.5


def test_labels_of_too_many_positions_are_counted_but_not_kept(monkeypatch):
    monkeypatch.setattr("tenfold.data.user_datasets._MOST_LABELS_KEPT", 100)
    monkeypatch.setattr("tenfold.data.user_datasets._READ_AT_ONCE", 7)
    masks = torch.full((len(X), 4, 4), -100)
    masks[1, 2, 3], masks[2, 0, 0] = 4, 0
    splits = as_splits([(x, mask) for x, mask in zip(X, masks, strict=True)])
    assert splits.classes == 5
    assert splits.train.targets is None
    masks[2, 0, 0] = -1
    with pytest.raises(DataError, match="the train part has the label -1"):
        as_splits([(x, mask) for x, mask in zip(X, masks, strict=True)])


def test_errors_in_the_users_own_code_keep_their_traceback():
    def broken():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        as_splits(broken)


def test_several_labels_per_sample():
    labels = torch.nn.functional.one_hot(Y)
    splits = as_splits((X, labels))
    assert (splits.multi_label, splits.classes, splits.outputs) == (True, None, 4)
    assert splits.train.y.dtype == torch.float32
    assert as_splits((X, Y[:, None])).classes == 4  # a column of labels
    with pytest.raises(ExperimentError, match=r"y\.argmax"):
        prepare(Resolved.of(Experiment(data=(X, labels), model="mlp", workers=1)))


@pytest.mark.parametrize("form", ["arrays", "dataset"])
def test_a_label_for_each_position(form):
    labels = torch.randint(0, 5, (12, 3))
    labels[0] = torch.tensor([4, 3, -100])
    splits = as_splits((X, labels) if form == "arrays" else list(zip(X, labels, strict=True)))
    assert (splits.classes, splits.outputs, splits.multi_label) == (5, 5, False)
    assert torch.equal(splits.train.targets, labels)
    assert split(splits, test_fraction=0.25).train.targets.shape == (9, 3)


def test_flags_as_uint8_are_warned_about():
    mask = torch.ones(12, 3, dtype=torch.uint8)
    with pytest.warns(UserWarning, match="uint8"):
        as_splits({"x": X, "mask": mask, "y": Y})
    with pytest.warns(UserWarning, match="uint8"):
        as_splits([{"x": X[i], "mask": mask[i], "y": Y[i]} for i in range(12)])


def test_a_later_sample_that_is_sparse_is_named():
    class Mixed(Items):
        def __getitem__(self, i):
            return (X[0].to_sparse() if i else X[0]), 0

    with pytest.raises(DataError, match="dataset"):
        DatasetPart(Mixed()).fingerprint()
