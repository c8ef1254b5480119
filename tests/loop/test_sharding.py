"""`shard`: every sample once over all ranks, equally many batches, and the loader otherwise as it was."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from looped import looped
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import tenfold
from tenfold.errors import DataError
from tenfold.loop.sharding import divided


def numbers(samples: int) -> TensorDataset:
    return TensorDataset(torch.arange(samples))


def epoch(loader: DataLoader[Any]) -> list[list[int]]:
    return [batch[0].tolist() for batch in loader]


def joined(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


def all_ranks(samples: int, size: int, **options: Any) -> list[DataLoader[Any]]:
    return [divided(DataLoader(numbers(samples), **options), rank, size) for rank in range(size)]


class SharedIntegers(IterableDataset[str]):
    def __iter__(self) -> Any:
        return iter(("a", "b"))


def join_up(samples: list[tuple[Tensor]]) -> tuple[Tensor, str]:
    return torch.stack([sample[0] for sample in samples]), "mine"


def seeded(worker: int) -> None:
    torch.set_num_threads(1)


class TestLaws:
    @settings(deadline=None, derandomize=True, max_examples=80)
    @given(st.integers(1, 120), st.integers(1, 8), st.integers(1, 20), st.booleans())
    def test_every_sample_once_and_equally_many_batches(
        self, samples: int, size: int, batch_size: int, shuffle: bool
    ) -> None:
        samples = max(samples, size)
        loaders = all_ranks(samples, size, batch_size=batch_size, shuffle=shuffle)
        for _ in range(2):
            epochs = [epoch(loader) for loader in loaders]
            assert sorted(joined([joined(epoch) for epoch in epochs])) == list(range(samples))
            assert {len(epoch) for epoch in epochs} == {len(loaders[0])}
            for item in epochs:
                assert all(len(batch) == batch_size for batch in item[:-1])
                assert 1 <= len(item[-1]) <= batch_size + 2
                assert len(item[-1]) > 1 or len(joined(item)) == 1 or batch_size == 1

    @settings(deadline=None, derandomize=True, max_examples=40)
    @given(st.integers(1, 120), st.integers(1, 8), st.integers(1, 20))
    def test_dropping_the_last_leaves_whole_batches(self, samples: int, size: int, batch_size: int) -> None:
        samples = max(samples, size * batch_size)
        epochs = [epoch(loader) for loader in all_ranks(samples, size, batch_size=batch_size, drop_last=True)]
        assert {len(epoch) for epoch in epochs} == {samples // size // batch_size}
        assert {len(batch) for epoch in epochs for batch in epoch} == {batch_size}
        seen = joined([joined(epoch) for epoch in epochs])
        assert len(set(seen)) == len(seen)


class TestOrder:
    def test_each_epoch_has_its_own_and_the_shard_stays(self) -> None:
        loader = all_ranks(40, 2, batch_size=5, shuffle=True)[1]
        first, second = joined(epoch(loader)), joined(epoch(loader))
        assert first != second
        assert sorted(first) == sorted(second)

    def test_a_shard_that_is_made_for_each_epoch_goes_on(self) -> None:
        source = DataLoader(numbers(40), batch_size=5, shuffle=True)
        anew = [epoch(tenfold.shard(source)) for _ in range(3)]
        once = tenfold.shard(DataLoader(numbers(40), batch_size=5, shuffle=True))
        assert anew == [epoch(once) for _ in range(3)]
        assert anew[0] != anew[1]

    def test_epochs_are_those_of_the_data_whatever_loader_they_come_in(self) -> None:
        data = numbers(40)
        anew = [epoch(tenfold.shard(DataLoader(data, batch_size=5, shuffle=True))) for _ in range(3)]
        once = tenfold.shard(DataLoader(numbers(40), batch_size=5, shuffle=True))
        assert anew == [epoch(once) for _ in range(3)]

    def test_data_that_cannot_be_remembered_go_by_their_loader(self) -> None:
        source = DataLoader(list(range(40)), batch_size=40, shuffle=True)
        first, second = ([batch.tolist() for batch in tenfold.shard(source)] for _ in range(2))
        assert first != second
        assert sorted(item.item() for item in tenfold.shard([1, 2, 3])) == [1, 2, 3]

    def test_it_follows_from_seed_epoch_and_rank(self) -> None:
        def made(**options: Any) -> list[list[int]]:
            source = DataLoader(numbers(40), batch_size=5, shuffle=True)
            return epoch(divided(source, **{"rank": 0, "size": 2, "seed": 0} | options))

        torch.manual_seed(1)
        one = made()
        torch.manual_seed(2)
        assert made() == one
        assert made(seed=1) != one

    def test_an_epoch_can_be_gone_back_to(self) -> None:
        loader = all_ranks(40, 2, batch_size=5, shuffle=True)[0]
        epochs = [epoch(loader) for _ in range(3)]
        loader.batch_sampler.epoch = 1  # type: ignore[union-attr]
        assert epoch(loader) == epochs[1]

    def test_what_was_not_shuffled_stays_in_order(self) -> None:
        for loader in all_ranks(40, 3, batch_size=5):
            visits = joined(epoch(loader))
            assert visits == sorted(visits) == joined(epoch(loader))

    def test_the_global_generator_is_left_alone(self) -> None:
        loader = all_ranks(40, 2, batch_size=5, shuffle=True)[0]
        before = torch.get_rng_state()
        epoch(loader)
        assert torch.equal(torch.get_rng_state(), before)


class TestTheLoader:
    def test_it_keeps_what_it_had(self) -> None:
        generator = torch.Generator().manual_seed(3)
        given_ = DataLoader(
            numbers(20),
            batch_size=4,
            num_workers=2,
            collate_fn=join_up,
            timeout=20,
            worker_init_fn=seeded,
            generator=generator,
            prefetch_factor=3,
            persistent_workers=True,
        )
        made = tenfold.shard(given_)
        kept = ("dataset", "num_workers", "collate_fn", "timeout", "worker_init_fn", "generator", "prefetch_factor")
        for name in (*kept, "persistent_workers", "pin_memory", "multiprocessing_context", "in_order"):
            assert getattr(made, name) == getattr(given_, name)
        assert made.batch_sampler.batch_size == 4  # type: ignore[union-attr]
        assert not made.batch_sampler.drop_last  # type: ignore[union-attr]

    @pytest.mark.timeout(60)
    def test_worker_processes_read_the_same_batches(self) -> None:
        alone = all_ranks(20, 2, batch_size=4, shuffle=True, collate_fn=join_up)[0]
        helped = all_ranks(
            20, 2, batch_size=4, shuffle=True, collate_fn=join_up, num_workers=1, persistent_workers=True
        )[0]
        for _ in range(2):
            assert epoch(helped) == epoch(alone)

    def test_a_dataset_becomes_a_loader(self) -> None:
        made = tenfold.shard(numbers(10), batch_size=3)
        assert [len(batch) for batch in epoch(made)] == [3, 3, 4]
        assert sorted(joined(epoch(made))) == list(range(10))
        assert joined(epoch(made)) != list(range(10))

    def test_the_rank_is_the_launchers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = []
        for rank in range(3):
            for name, value in {"RANK": rank, "WORLD_SIZE": 3, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 3}.items():
                monkeypatch.setenv(name, str(value))
            seen += joined(epoch(tenfold.shard(numbers(10), batch_size=2)))
        assert sorted(seen) == list(range(10))


class NoLength(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


REFUSED: dict[str, tuple[Any, str]] = {
    "iterable": (SharedIntegers(), "an iterable-style Dataset cannot be divided"),
    "iterable in a loader": (DataLoader(SharedIntegers()), "an iterable-style Dataset cannot be divided"),
    "no batches": (DataLoader(numbers(9), batch_size=None), "batch_size=None cannot be divided; give it a batch_size"),
    "own batches": (
        DataLoader(numbers(9), batch_sampler=[[1, 2]]),  # type: ignore[arg-type]
        "a loader with list cannot be divided",
    ),
    "own sampler": (
        DataLoader(numbers(9), sampler=SubsetRandomSampler([1])),
        "(SubsetRandomSampler) cannot be divided",
    ),
    "weighted": (
        DataLoader(numbers(2), sampler=WeightedRandomSampler([1.0, 2.0], 2)),
        "(WeightedRandomSampler) cannot be divided; leave the sampler out",
    ),
    "replaced": (
        DataLoader(numbers(2), sampler=RandomSampler(range(2), replacement=True)),
        "(RandomSampler) cannot be divided",
    ),
    "no length": (NoLength(), "shard takes a DataLoader or a map-style Dataset, and got an object of NoLength"),
    "nothing": (3, "and got an object of int"),
    "no full batch": (DataLoader(numbers(3), batch_size=4, drop_last=True), "no full batch of 4"),
    "empty": (DataLoader(numbers(0), batch_size=4), "0 samples cannot be divided among 1 ranks"),
}


@looped("case", REFUSED)
def test_what_cannot_be_divided_is_one_sentence(case: str) -> None:
    given_, said = REFUSED[case]
    with pytest.raises(DataError) as error:
        tenfold.shard(given_)
    assert said in str(error.value)


def test_options_belong_to_a_dataset() -> None:
    with pytest.raises(DataError, match="batch_size"):
        tenfold.shard(DataLoader(numbers(9)), batch_size=3)


def test_more_ranks_than_samples() -> None:
    with pytest.raises(DataError, match="divided"):
        all_ranks(3, 4)
