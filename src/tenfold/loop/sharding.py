"""`tenfold.shard`: this rank's share of a data set, as a DataLoader for your own training loop."""

from collections.abc import Iterator, Sized
from contextlib import suppress
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler

from tenfold.data import batch_sizes, make_shards, order
from tenfold.data.user_datasets import visits_all
from tenfold.errors import DataError, MachineError
from tenfold.launchers import World, detect_world

ALONE = World(rank=0, size=1, local_rank=0, local_size=1, launcher="")


def here() -> World:
    """Return this process's place among those that torchrun, mpirun or srun started."""
    world = detect_world()
    if world is not None:
        return world
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        size = torch.distributed.get_world_size()
        if size > 1:
            raise MachineError(
                f"torch.distributed has {size} ranks, but no known launcher started them; "
                f"start the program with torchrun, mpirun or srun"
            )
    return ALONE


class Epochs:
    """The number of passes over a data set so far."""

    count = 0


_SEEN: WeakKeyDictionary[Any, Epochs] = WeakKeyDictionary()
_DIVIDED: set[tuple[int, int]] = set()
"""The number of samples and the seed of everything that was divided here."""


def shard(data: DataLoader[Any] | Dataset[Any], seed: int = 0, **options: Any) -> DataLoader[Any]:
    """Return a DataLoader over this rank's shard of the data: all ranks together see every sample once an epoch.

    A loader keeps its batch size, its worker processes and everything else, and is reshuffled each epoch if it was
    shuffled before, in an order that follows from (seed, epoch, rank). A dataset is taken as
    `DataLoader(dataset, shuffle=True, **options)`.

    All ranks get the same number of batches. Nothing is padded or (without `drop_last`) left out, so the last batch
    takes the remaining samples: up to two more than the others. Epochs are counted per data set, so the shard may be
    created once or for each epoch; to start with another epoch, set `shard(loader).batch_sampler.epoch`.
    """
    if isinstance(data, DataLoader):
        if options:
            raise DataError(f"shard got a DataLoader and {', '.join(options)}; set them on the DataLoader")
        loader = data
    elif isinstance(data, IterableDataset):
        raise DataError("an iterable-style Dataset cannot be divided; give it __len__ and __getitem__ (map-style)")
    elif isinstance(data, Sized) and hasattr(data, "__getitem__"):
        loader = DataLoader(data, **{"shuffle": True} | options)
    else:
        raise DataError(f"shard takes a DataLoader or a map-style Dataset, and got an object of {type(data).__name__}")
    world = here()
    loader = divided(loader, world.rank, world.size, seed, _epochs_of(loader.dataset, data))
    _DIVIDED.add((len(cast(Sized, loader.dataset)), seed))
    return loader


def describe_shards() -> dict[str, str]:
    """Return the inputs of all shards made so far: only if these are equal on all ranks do shards not overlap."""
    return {"shards": ", ".join(f"{samples} samples with seed {seed}" for samples, seed in sorted(_DIVIDED)) or "none"}


def divided(
    loader: DataLoader[Any], rank: int, size: int, seed: int = 0, epochs: Epochs | None = None
) -> DataLoader[Any]:
    """Return the loader of one of `size` ranks."""
    _refuse_what_cannot_be_divided(loader)
    samples = len(cast(Sized, loader.dataset))
    batch_size = cast(int, loader.batch_size)
    batches = Batches(
        samples,
        rank,
        size,
        batch_size,
        epochs or Epochs(),
        seed=seed,
        shuffle=isinstance(loader.sampler, RandomSampler),
        drop_last=loader.drop_last,
    )
    return DataLoader(
        loader.dataset,
        batch_sampler=cast(BatchSampler, batches),
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        pin_memory_device=loader.pin_memory_device,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator or _generator(seed, rank),
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
        in_order=loader.in_order,
    )


class Batches:
    """The sample numbers of one rank's batches, in a different order in each pass."""

    def __init__(
        self,
        samples: int,
        rank: int,
        size: int,
        batch_size: int,
        epochs: Epochs,
        *,
        seed: int,
        shuffle: bool,
        drop_last: bool,
    ) -> None:
        if samples < size:
            raise DataError(f"{samples} samples cannot be divided among {size} ranks; start {max(1, samples)} at most")
        self.batch_size = batch_size
        self.drop_last = drop_last
        self._epochs = epochs
        self._rank, self._seed, self._shuffle = rank, seed, shuffle
        self._shard = make_shards(samples, size, seed=seed)[rank]
        smallest = samples // size
        if drop_last:
            self.sizes = [batch_size] * (smallest // batch_size)
            if not self.sizes:
                raise DataError(
                    f"a shard of {smallest} samples has no full batch of {batch_size}; "
                    f"make the batch smaller, or leave drop_last out"
                )
        else:
            self.sizes = batch_sizes(smallest, batch_size)
            self.sizes[-1] += len(self._shard) - smallest

    @property
    def epoch(self) -> int:
        """The number of the next epoch, which decides the order."""
        return self._epochs.count

    @epoch.setter
    def epoch(self, number: int) -> None:
        self._epochs.count = number

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[list[int]]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        visits = order(self._shard, self._seed, epoch, self._rank) if self._shuffle else torch.from_numpy(self._shard)
        start = 0
        for size in self.sizes:
            yield visits[start : start + size].tolist()
            start += size


def _epochs_of(*data: Any) -> Epochs:
    """Return the count that goes with the first of these that can be remembered: a list, for one, cannot."""
    for item in data:
        with suppress(TypeError):
            return _SEEN.setdefault(item, Epochs())
    return Epochs()


def _refuse_what_cannot_be_divided(loader: DataLoader[Any]) -> None:
    if isinstance(loader.dataset, IterableDataset):
        raise DataError("an iterable-style Dataset cannot be divided; give it __len__ and __getitem__ (map-style)")
    if loader.batch_size is None:
        own = type(loader.batch_sampler).__name__ if loader.batch_sampler is not None else "batch_size=None"
        raise DataError(f"a loader with {own} cannot be divided; give it a batch_size instead")
    if not visits_all(loader.sampler, len(cast(Sized, loader.dataset))):
        raise DataError(
            f"a loader with its own sampler ({type(loader.sampler).__name__}) cannot be divided; "
            f"leave the sampler out and say shuffle=True or shuffle=False"
        )


def _generator(seed: int, rank: int) -> torch.Generator:
    """Seed the loader's worker processes apart from the other ranks', whose global generators may be the same."""
    word = np.random.SeedSequence(seed, spawn_key=(rank,)).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(word >> np.uint64(1)))
