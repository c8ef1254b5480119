import sys
import types
from itertools import islice

import pytest
import torch
from looped import looped
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

import tenfold
from tenfold.data import load
from tenfold.data.streams import StreamPart
from tenfold.data.user_datasets import ValueRules
from tenfold.errors import DataError, TenfoldError

GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(96, 3, generator=GENERATOR)
Y = (X.sum(1) > 1.5).long()
TEST = TensorDataset(X[:20], Y[:20])


class Stream(IterableDataset):
    """Yields (x, y), and leaves the parallel among workers to others."""

    def __init__(self, samples=96):
        self.samples = samples

    def __iter__(self):
        for i in range(self.samples):
            yield X[i % 96], Y[i % 96]


class SizedStream(Stream):
    def __len__(self):
        return self.samples


class DividedStream(SizedStream):
    """Divides itself among workers, as torch's documentation shows it: by consecutive samples."""

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        each = -(-self.samples // workers)
        for i in range(worker * each, min(self.samples, (worker + 1) * each)):
            yield X[i], Y[i]


class Numbers(IterableDataset):
    """The numbers 0, 1, ... as inputs and targets; `begun` has the epochs that it was told."""

    def __init__(self, samples):
        self.samples, self.begun = samples, []

    def set_epoch(self, epoch):
        self.begun.append(epoch)

    def __iter__(self):
        for i in range(self.samples):
            yield torch.tensor([float(i)]), torch.tensor([float(i)])


def read(part, batches):
    return [int(item) for x, _ in part.batches(batches) for item in x]


def make_part(dataset, **options):
    return load((dataset, TEST if len(next(iter(dataset))[0]) == 3 else Numbers(5)), **options).train


@looped("dataset", [SizedStream(), DividedStream()])
def test_workers_together_read_every_sample_once(dataset):
    part = make_part(dataset, rules=ValueRules(2))
    assert isinstance(part, StreamPart)
    for workers in (1, 2, 3):
        shards = [part.shard(worker, workers) for worker in range(workers)]
        found = torch.cat([next(shard.batches([range(len(shard))]))[0] for shard in shards])
        assert sorted(found.tolist()) == sorted(X.tolist())
    assert get_worker_info() is None


def test_streams_of_hugging_face_are_divided_by_their_own_function(monkeypatch):
    class Remote:
        __module__ = "datasets.iterable_dataset"

        def __init__(self, start=0, step=1):
            self.start, self.step = start, step

        def __iter__(self):
            for i in range(self.start, 96, self.step):
                assert get_worker_info() is None
                yield {"x": X[i], "label": int(Y[i])}

    module = types.ModuleType("datasets.distributed")
    module.split_dataset_by_node = lambda dataset, rank, world_size: Remote(rank, world_size)
    monkeypatch.setitem(sys.modules, "datasets", types.ModuleType("datasets"))
    monkeypatch.setitem(sys.modules, "datasets.distributed", module)
    part = load({"train": Remote(), "test": Remote()}, epoch_samples=96, limit=96, rules=ValueRules(2)).train
    found = torch.cat([next(part.shard(worker, 2).batches([range(48)]))[0] for worker in range(2)])
    assert sorted(found.tolist()) == sorted(X.tolist())


def test_data_of_hugging_face_train(tmp_path):
    """With the package itself, where it is installed."""
    datasets = pytest.importorskip("datasets")
    columns = {"x": X.tolist(), "label": Y.tolist()}
    mapped = datasets.Dataset.from_dict(columns).with_format("torch")
    stream = mapped.to_iterable_dataset(num_shards=4)
    part = load({"train": stream, "test": mapped}, epoch_samples=96, rules=ValueRules(2)).train
    found = torch.cat([next(part.shard(worker, 2).batches([range(48)]))[0] for worker in range(2)])
    assert sorted(found.tolist()) == sorted(X.tolist())
    same = {"model": "mlp", "hidden": [4], "classes": 2, "epochs": 1, "threads": 1, "runs": tmp_path, "progress": False}
    for data, more in ((mapped, {}), ({"train": stream, "test": mapped}, {"epoch_samples": 96})):
        assert tenfold.train(data=data, **same, **more).status == "finished"


def test_an_epoch_of_a_given_length_goes_on_where_the_last_one_ended():
    dataset = Numbers(10)
    part = load({"train": dataset, "test": TensorDataset(X[:, :1], X[:, :1])}, epoch_samples=4).train
    assert len(part) == 4
    alone = part.shard(0, 1)
    assert [read(alone, [[at, at + 1, at + 2, at + 3]]) for at in (0, 4, 8)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 0, 1],
    ]
    assert read(part.shard(1, 2), [[2, 3], [4, 5]]) == [5, 7, 9, 1]  # as a resumed run begins, in the middle
    assert read(alone, [[0, 1]]) == [0, 1]
    assert set(dataset.begun) == {0, 1}
    with pytest.raises(DataError, match="in any order"):
        read(alone, [[3, 1]])


def test_a_stream_that_is_shorter_than_an_epoch_is_read_again_with_a_warning():
    part = load({"train": Numbers(3), "test": TensorDataset(X[:, :1], X[:, :1])}, epoch_samples=5).train
    with pytest.warns(UserWarning, match=r"gives worker 0 3 samples.*more than once"):
        assert read(part.shard(0, 1), [range(5)]) == [0, 1, 2, 0, 1]


CLUSTER = {"groups": [{"count": 2, "step_seconds": 0.01}]}


@looped("make", [Stream, DividedStream])
def test_a_stream_trains_as_its_virtual_twin_does(tmp_path, make):
    options = {"model": "mlp", "classes": 2, "epoch_samples": 60, "epochs": 3, "batch_size": 8, "threads": 1}
    for workers in (1, 2):
        data = (make(), SizedStream(20))
        run = tenfold.train(data=data, workers=workers, **options, runs=tmp_path)
        twin = tenfold.simulate(data=data, workers=workers, cluster=CLUSTER, **options, runs=tmp_path)
        assert all(torch.equal(item, twin.weights[name]) for name, item in run.weights.items())
        assert run.metadata["shards"]["samples"] == [60 // workers] * workers
        mapped = tenfold.train(data=(make(), TEST), workers=workers, **options, runs=tmp_path)
        assert mapped.metrics == run.metrics
    assert run.metadata["data"]["test"] == 20


def test_one_pass_over_a_stream_learns_what_arrays_in_its_order_would(tmp_path):
    options = {"model": "mlp", "classes": 2, "epochs": 1, "batch_size": 96, "threads": 1, "runs": tmp_path}
    streamed = tenfold.train(data=(SizedStream(), TEST), **options)
    arrays = tenfold.train(data=((X, Y), (X[:20], Y[:20])), **options)
    for name, item in streamed.weights.items():
        assert torch.allclose(item, arrays.weights[name], atol=1e-6)
    assert streamed.evaluate(SizedStream(20))["accuracy"] == streamed.accuracy
    assert streamed.evaluate(DataLoader(SizedStream(20), batch_size=4))["accuracy"] == streamed.accuracy


def test_a_stream_alone_is_trained_on_without_a_test_part(tmp_path):
    run = tenfold.train(model="mlp", data=Stream(), classes=2, epoch_samples=32, epochs=1, runs=tmp_path)
    assert run.metadata["data"]["test"] == 0
    assert len(list(islice(Stream(), 5))) == 5


def test_a_stream_of_pictures_is_evaluated(tmp_path):
    class Pictures(SizedStream):
        def __iter__(self):
            for i in range(self.samples):
                yield X[i].reshape(1, 1, 3).expand(1, 6, 3).repeat(1, 1, 2), Y[i]

    run = tenfold.train(model="mlp", data=(Pictures(), Pictures(20)), classes=2, epochs=1, runs=tmp_path)
    assert len(run.predictions_on("test")) == 20


class Once(IterableDataset):
    def __iter__(self):
        return self

    def __next__(self):
        return X[0], X[0]


@looped(
    ("fields", "message"),
    [
        ({"data": (Stream(), TEST), "classes": 2}, "set epoch_samples"),
        ({"data": (SizedStream(), Stream(5)), "classes": 2}, "stream"),
        ({"data": (SizedStream(), TEST)}, "set classes"),
        ({"data": SizedStream(), "classes": 2, "test_fraction": 0.2}, "data.test_fraction needs random access"),
        ({"data": SizedStream(), "classes": 2, "validation_fraction": 0.2}, "data.validation_fraction needs random"),
        ({"data": SizedStream(), "classes": 2, "shards": "label-skew", "workers": 2}, "label-skew.*random access"),
        ({"data": SizedStream(), "classes": 2, "loader_workers": 1}, "data.loader_workers = 1"),
        ({"data": SizedStream(), "classes": 2, "standardize": True}, "data.standardize needs"),
        ({"data": (SizedStream(30), SizedStream(0)), "classes": 2}, "SizedStream"),
        ({"data": Once(), "epoch_samples": 4}, "can be read only once"),
        ({"data": (X, Y), "epoch_samples": 4}, "epoch_samples"),
        ({"data": DividedStream(1), "epoch_samples": 8, "classes": 2, "workers": 2}, "no samples for worker 1 of 2"),
    ],
)
def test_what_a_stream_cannot_give_is_refused(tmp_path, fields, message):
    with pytest.raises(TenfoldError, match=message):
        tenfold.train(model="mlp", epochs=1, **fields, runs=tmp_path)


def test_streams_are_not_cross_validated(tmp_path):
    with pytest.raises(DataError, match="cross-validation"):
        tenfold.cross_validate(model="mlp", data=(SizedStream(), TEST), classes=2, folds=2, runs=tmp_path)


def test_a_part_that_ends_too_early_is_an_error(tmp_path):
    class Short(SizedStream):
        def __len__(self):
            return 30

    with pytest.raises(TenfoldError, match="length"):
        tenfold.train(model="mlp", data=(SizedStream(), Short(20)), classes=2, epochs=1, runs=tmp_path)


def test_a_resumed_run_goes_on_in_its_stream(tmp_path):
    class Stop(tenfold.Callback):
        def on_epoch_end(self, event):
            if event.epoch >= 1:
                raise KeyboardInterrupt

    data = (Stream(), TEST)
    options = {"model": "mlp", "data": data, "classes": 2, "epoch_samples": 40, "epochs": 4, "batch_size": 8}
    whole = tenfold.train(**options, workers=2, runs=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        tenfold.train(**options, workers=2, callbacks=[Stop()], runs=tmp_path)
    resumed = tenfold.resume("last", data=data, runs=tmp_path)
    assert all(torch.equal(item, whole.weights[name]) for name, item in resumed.weights.items())
