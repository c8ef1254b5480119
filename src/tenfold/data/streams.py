"""Parts that are read from beginning to end: iterable-style Datasets and other streams.

A shard of a stream is a stream. A sample's number is its position in the stream of its worker, counted on from epoch to
epoch; when the source ends, it is read again from its beginning.
"""

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from tenfold.common.imports import warn_user
from tenfold.data.dataset_part import CheckLabels, Collate, as_batch, leaves_of, quiet_randomness
from tenfold.data.part import (
    CPU,
    CopyTimer,
    Indices,
    Part,
    Splits,
    Tensors,
    as_indices,
    digest,
    select_rows,
    tree_leaves,
)
from tenfold.errors import DataError, ExperimentError

SHARD_KINDS_OF_STREAMS = ("iid", "contiguous")
_FINGERPRINT_SAMPLES = 8
_WORKER_INFO = threading.RLock()
"""torch has one worker info for each process, not for each thread."""


def is_stream(value: Any) -> bool:
    """Return whether a value is an iterable-style Dataset, of torch or Hugging Face."""
    return isinstance(value, IterableDataset) or (_is_hugging_face(value) and not hasattr(value, "__getitem__"))


def _is_hugging_face(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "datasets" and hasattr(value, "__iter__")


@dataclass(eq=False, repr=False)
class StreamPart(Part):
    """A stream, or one worker's share of it."""

    dataset: Any
    collate: Collate
    _: KW_ONLY
    length: int | None = None
    """The samples of an epoch, or of a part that is evaluated; None if unknown."""
    repeats: bool = False
    """Whether the source is read again when it ends, as for a training part."""
    pass_limit: int | None = None
    """The maximum number of samples in one pass over the source, for all workers together."""
    worker: int = 0
    workers: int = 1
    device: torch.device = CPU
    dtype: torch.dtype = torch.float32
    check_labels: CheckLabels | None = None

    def __post_init__(self) -> None:
        self.length = self.length if self.length is not None else self.own_length
        self._reader: _Reader | None = None
        self._shards: dict[tuple[int, int], StreamPart] = {}
        self._copies = CopyTimer(self.device)

    def __len__(self) -> int:
        if self.length is None:
            raise DataError(f"the stream ({type(self.dataset).__name__}) has no length; give it a __len__")
        return self.length

    @property
    def targets(self) -> None:
        """Targets are known only when they are read."""
        return

    def shard(self, worker: int, workers: int) -> "StreamPart":
        """Return one worker's share: every n-th sample if the source does not divide itself."""
        if (worker, workers) not in self._shards:
            length = len(range(worker, len(self), workers))
            self._shards[worker, workers] = replace(self, length=length, worker=worker, workers=workers)
        return self._shards[worker, workers]

    def batches(self, indices: Iterable[Indices]) -> Iterator[tuple[Any, Any]]:
        """Yield the samples at these positions, which have to follow each other within a batch."""
        for batch in indices:
            rows = as_indices(batch).tolist()
            if rows != list(range(rows[0], rows[0] + len(rows))):
                raise _no_random_access("reading samples in any order")
            if self._reader is None or self._reader.position > rows[0]:
                self._reader = _Reader(self)
            self._reader.skip(rows[0] - self._reader.position)
            x, y = self.collate(list(islice(self._reader, len(rows))))
            if self.check_labels is not None and isinstance(y, Tensor):
                self.check_labels(y)
            with self._copies.timing():
                moved = as_batch(x, y, self.device, self.dtype)
            yield moved

    def subset(self, indices: Indices) -> Tensors:
        """Read the first samples into memory; others would need random access."""
        rows = as_indices(indices)
        first = int(rows.max()) + 1
        if len(set(rows.tolist())) != first:
            raise _no_random_access("selecting samples")
        with quiet_randomness():
            x, y = next(replace(self).batches([range(first)]))
        if not all(isinstance(item, Tensor) for item in (*tree_leaves(x), y)):
            raise _no_random_access("selecting samples")
        return Tensors(select_rows(x, rows.to(self.device)), y.index_select(0, rows.to(self.device)))

    def fingerprint(self) -> str:
        """Digest of the length and of the first samples."""
        with quiet_randomness():
            samples = list(islice(iter(self.dataset), _FINGERPRINT_SAMPLES))
        return digest(type(self.dataset).__name__, self.length, *leaves_of(samples))

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "StreamPart":
        return replace(self, device=torch.device(device), dtype=dtype or self.dtype)

    def take_copy_seconds(self) -> float:
        return self._copies.take() + sum(shard.take_copy_seconds() for shard in self._shards.values())

    @property
    def own_length(self) -> int | None:
        """The length that the source reports; None if it reports none."""
        try:
            return len(self.dataset)
        except (TypeError, NotImplementedError):
            return None

    def sized(self, length: int, *, repeats: bool, pass_limit: int | None) -> "StreamPart":
        return replace(self, length=length, repeats=repeats, pass_limit=pass_limit)

    def count(self, most: int) -> int:
        """Read the samples and return their number, at most `most`."""
        with quiet_randomness():
            return sum(1 for _ in islice(iter(self.dataset), most))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_reader": None, "_shards": {}}


class _Reader:
    """Reads a worker's samples one after another, and knows its position."""

    def __init__(self, part: StreamPart) -> None:
        self.position = 0
        self._part = part
        self._passes = 0
        self._warned = False
        self._begin_pass()

    def skip(self, samples: int) -> None:
        for _ in islice(self, samples):
            pass

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        at_end = object()
        sample = next(self._samples, at_end)
        if sample is at_end:
            self._end_pass()
            self._begin_pass()
            sample = next(self._samples, at_end)
            if sample is at_end:
                raise self._ended("gives no samples")
        self.position += 1
        self._in_pass += 1
        return sample

    def _begin_pass(self) -> None:
        part = self._part
        most = None if part.pass_limit is None else len(range(part.worker, part.pass_limit, part.workers))
        self._samples = islice(_samples_of(part.dataset, part.worker, part.workers, self._passes), most)
        self._in_pass = 0
        self._passes += 1

    def _end_pass(self) -> None:
        part = self._part
        if not self._in_pass:
            raise self._ended("gives no samples")
        if not part.repeats:
            raise self._ended(f"ended after {self._in_pass} samples, although its length is {part.length}")
        if part.length is not None and self._in_pass < part.length and not self._warned:
            self._warned = True
            warn_user(
                f"the stream ({type(part.dataset).__name__}) gives worker {part.worker} {self._in_pass} samples, but "
                f"an epoch takes {part.length}: it is read again, so that some samples come more than once in an epoch"
            )

    def _ended(self, what: str) -> DataError:
        part = self._part
        reader = f" for worker {part.worker} of {part.workers}" if part.workers > 1 else ""
        fewer = "; use fewer workers, or a source that can be divided among them" if part.workers > 1 else ""
        return DataError(f"the stream ({type(part.dataset).__name__}) {what}{reader}{fewer}")


def _samples_of(dataset: Any, worker: int, workers: int, epoch: int) -> Iterator[Any]:
    """Yield one worker's samples of one pass over a source: all workers together get each sample once.

    Hugging Face sources are divided by `split_dataset_by_node`. Other sources can call `get_worker_info`, as in torch's
    DataLoader. If a source does not call it, each worker reads all samples and uses every n-th. `set_epoch`, if there
    is one, is called with the number of the pass.
    """
    if hasattr(dataset, "set_epoch"):
        dataset.set_epoch(epoch)
    if workers == 1:
        yield from iter(dataset)
        return
    if _is_hugging_face(dataset):
        from datasets.distributed import split_dataset_by_node

        yield from iter(split_dataset_by_node(dataset, rank=worker, world_size=workers))
        return
    info = _WorkerInfo(worker, workers, dataset)
    with _reading_as(info):
        samples = iter(dataset)
    at_end, place = object(), 0
    while True:
        with _reading_as(info):
            sample = next(samples, at_end)
        if sample is at_end:
            return
        if info.was_asked or place % workers == worker:
            yield sample
        place += 1


class _WorkerInfo:
    """What `get_worker_info` returns in a stream; it records whether the number of workers was read."""

    def __init__(self, worker: int, workers: int, dataset: Any) -> None:
        self.id = worker
        self.seed = torch.initial_seed() % 2**63 + worker
        self.dataset = dataset
        self.was_asked = False
        self._workers = workers

    @property
    def num_workers(self) -> int:
        self.was_asked = True
        return self._workers


@contextmanager
def _reading_as(info: _WorkerInfo) -> Iterator[None]:
    """Make torch's `get_worker_info` return `info` within the block."""
    torch_worker: Any = sys.modules["torch.utils.data._utils.worker"]
    with _WORKER_INFO:
        before = torch_worker._worker_info
        torch_worker._worker_info = info
        try:
            yield
        finally:
            torch_worker._worker_info = before


def with_lengths(splits: Splits, epoch_samples: int | None, limit: int | None) -> Splits:
    """Return splits whose streams have a length, given or reported; `limit` is the maximum for each part."""
    if epoch_samples is not None and not isinstance(splits.train, StreamPart):
        raise DataError(
            f"data.epoch_samples = {epoch_samples} is for streams (iterable-style Datasets); these data have "
            f"{len(splits.train)} samples in an epoch"
        )
    sized: dict[str, Part] = {}
    for name, part in splits.parts.items():
        if not isinstance(part, StreamPart):
            sized[name] = part
            continue
        own_length = part.own_length
        if name == "train":
            length = epoch_samples or min((item for item in (own_length, limit) if item is not None), default=None)
        else:
            length = own_length if own_length is not None or limit is None else part.count(limit)
            length = length if length is None or limit is None else min(length, limit)
        if not length:
            raise DataError(
                f"the {name} part is a stream without a length; "
                + (
                    "set epoch_samples, the samples of an epoch"
                    if name == "train"
                    else "give it a __len__, or set limit, the most samples of each part"
                )
            )
        sized[name] = part.sized(length, repeats=name == "train", pass_limit=limit)
    whole: dict[str, Any] = sized
    return replace(splits, **whole)


def check_stream_is_not_cut(splits: Splits, **cuts: Any) -> None:
    """Raise a DataError if the training part is a stream and one of `cuts` would have to divide it."""
    for name, value in cuts.items():
        if isinstance(splits.train, StreamPart) and value is not None and value is not False and value != 0:
            raise DataError(
                f"data.{name} needs random access to the samples, which a stream (iterable-style Dataset) does not "
                "have; pass the parts separately: data=(train, test) or (train, validation, test)"
            )


def check_stream_shards(kind: str) -> None:
    """Raise an ExperimentError if a stream cannot be divided into this kind of shards."""
    if kind not in SHARD_KINDS_OF_STREAMS:
        raise ExperimentError(
            f'parallel.shards = "{kind}" needs random access to the samples, which a stream (iterable-style Dataset) '
            "does not have; omit it"
        )


def refuse_stream(part: Part, what: str) -> None:
    """Raise a DataError if a part is a stream; `what` names the feature that needs random access."""
    if isinstance(part, StreamPart):
        raise _no_random_access(what)


def _no_random_access(what: str) -> DataError:
    return DataError(
        f"a stream (iterable-style Dataset) does not support {what}, because it is read from beginning to end; pass a "
        "map-style Dataset, with __len__ and __getitem__, or arrays"
    )
