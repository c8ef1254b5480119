from math import ceil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from looped import looped
from torch import Tensor

from tenfold.errors import ExperimentError
from tenfold.experiment import Parallel
from tenfold.mixing import COMPRESSIONS
from tenfold.mixing.compression import Compressor, Int8, OneBit, Packed, TopK, row_lengths
from tenfold.workers.task import Mixing

law = settings(deadline=None, derandomize=True, max_examples=40)
sizes = st.integers(0, 3000)
numbers = st.floats(-1e3, 1e3, width=32, allow_subnormal=False)
names = list(COMPRESSIONS)
with_feedback = [name for name in names if COMPRESSIONS[name].error_feedback]
SMALL = {"int8": {"block": 4}, "1bit": {"column": 5}, "topk": {"fraction": 0.3}}


def noise(size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def unpack(compressor: Compressor, packed: Packed) -> Tensor:
    return compressor.decode(packed, torch.full((compressor.size,), torch.nan))


def quantum(compressor: Compressor, packed: Packed, meant: Tensor) -> float:
    """Return the most that one number can be off after being packed once."""
    match compressor:
        case Int8():
            return packed.tensors[1].max().item() / 254 * 1.001
        case TopK():
            return packed.tensors[1].abs().min().item()
        case OneBit():
            return (meant.max() - meant.min()).item() * 1.001
    raise AssertionError(compressor.name)


@pytest.mark.parametrize("name", names)
class TestEveryCompressor:
    @law
    @given(size=sizes)
    def test_any_size_travels_in_the_bytes_it_claims(self, name, size):
        compressor = COMPRESSIONS[name](size)
        packed = compressor.encode(noise(size))
        claimed = {
            "none": 4 * size,
            "bf16": 2 * size,
            "int8": size + 4 * ceil(size / 256),
            "topk": 8 * min(size, max(1, round(0.01 * size))),
            "1bit": ceil(size / 8) + 8 * ceil(size / 1024),
        }
        assert packed.nbytes == claimed[name]
        rebuilt = unpack(compressor, packed)
        assert rebuilt.shape == (size,)
        assert rebuilt.isfinite().all()

    @law
    @given(size=st.integers(1, 300), seed=st.integers(0, 100))
    def test_the_same_vectors_give_the_same_bytes(self, name, size, seed):
        one, other = COMPRESSIONS[name](size), COMPRESSIONS[name](size)
        for r in range(3):
            u = noise(size, seed + r)
            kept = u.clone()
            first, second = one.encode(u), other.encode(u)
            assert all(torch.equal(a, b) for a, b in zip(first.tensors, second.tensors, strict=True))
            assert torch.equal(u, kept)
            assert torch.equal(unpack(one, first), unpack(COMPRESSIONS[name](size), second))

    def test_zero_stays_zero(self, name):
        compressor = COMPRESSIONS[name](1500)
        assert unpack(compressor, compressor.encode(torch.zeros(1500))).tolist() == [0] * 1500

    @pytest.mark.parametrize("u", [torch.zeros(9), torch.zeros(10, dtype=torch.float16), torch.zeros(2, 5)])
    def test_other_vectors_are_refused(self, name, u):
        with pytest.raises(ValueError, match=name):
            COMPRESSIONS[name](10).encode(u)

    def test_nothing_of_float64_is_lost_for_good(self, name):
        compressor, u = COMPRESSIONS[name](100), noise(100).double() + 1e-12
        decoded = compressor.decode(compressor.encode(u), torch.empty_like(u))
        assert decoded.dtype == torch.float64
        if compressor.error_feedback or name == "none":
            torch.testing.assert_close(decoded + (compressor.error if name != "none" else 0), u, rtol=0, atol=1e-15)

    def test_packed_tensors_own_their_bytes(self, name):
        u = noise(100)
        compressor = COMPRESSIONS[name](100)
        packed = compressor.encode(u)
        before = unpack(compressor, packed)
        u.zero_()
        assert torch.equal(unpack(compressor, packed), before)
        assert all(tensor.untyped_storage().nbytes() <= 2 * packed.nbytes for tensor in packed.tensors)

    def test_the_registry_knows_it_by_its_own_name(self, name):
        assert COMPRESSIONS[name].name == name


@pytest.mark.parametrize("name", ["none", "int8", "1bit"])
@law
@given(value=numbers, size=st.integers(1, 2100))
def test_constant_vectors_are_exact(name, value, size):
    compressor = COMPRESSIONS[name](size)
    u = torch.full((size,), value)
    assert torch.equal(unpack(compressor, compressor.encode(u)), u)
    assert compressor.error is None or not compressor.error.any()


@pytest.mark.parametrize("name", with_feedback)
@law
@given(rounds=st.lists(st.lists(numbers, min_size=11, max_size=11), min_size=1, max_size=12))
def test_what_was_sent_differs_from_what_was_meant_by_one_quantum(name, rounds):
    compressor = COMPRESSIONS[name](11, **SMALL[name])
    meant = torch.zeros(11, dtype=torch.float64)
    sent = torch.zeros(11, dtype=torch.float64)
    for values in rounds:
        u = torch.tensor(values)
        owed = u if compressor.error is None else u + compressor.error
        packed = compressor.encode(u)
        meant += u
        sent += unpack(compressor, packed)
        assert ((meant - sent).abs() <= quantum(compressor, packed, owed) + 0.01).all()
    assert compressor.error is not None
    torch.testing.assert_close(meant - sent, compressor.error.double(), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("name", with_feedback)
def test_a_steady_signal_arrives_in_time(name):
    compressor, u = COMPRESSIONS[name](200), noise(200)
    sent = torch.zeros(200)
    for _ in range(1000):
        sent += unpack(compressor, compressor.encode(u))
    torch.testing.assert_close(sent / 1000, u, rtol=0, atol=0.2)


def test_bfloat16_keeps_eight_bits():
    compressor, u = COMPRESSIONS["bf16"](1000), noise(1000)
    assert ((unpack(compressor, compressor.encode(u)) - u).abs() <= u.abs() * 2**-8).all()


def test_int8_by_hand():
    compressor = Int8(5, block=3)
    steps, scales = compressor.encode(torch.tensor([1.0, -2.0, 0.5, 0.0, 0.25])).tensors
    assert steps.tolist() == [64, -127, 32, 0, 127]
    assert scales.tolist() == [2, 0.25]
    assert steps.dtype == torch.int8


def test_topk_sends_the_largest_and_keeps_the_rest_for_later():
    compressor = TopK(5, fraction=0.4)
    packed = compressor.encode(torch.tensor([1.0, -5.0, 0.0, 2.0, 4.0]))
    assert [tensor.tolist() for tensor in packed.tensors] == [[1, 4], [-5, 4]]
    assert packed.tensors[0].dtype == torch.int32
    assert compressor.error.tolist() == [1, 0, 0, 2, 0]
    assert unpack(compressor, compressor.encode(torch.zeros(5))).tolist() == [1, 0, 0, 2, 0]


def test_one_bit_by_hand():
    compressor = OneBit(10, column=8)
    u = torch.tensor([1.0, 3.0, -2.0, -4.0, 2.0, -6.0, 0.0, 4.0, -3.0, 5.0])
    octets, means = compressor.encode(u).tensors
    assert octets.tolist() == [0b11010011, 0b10]
    assert means.tolist() == [[2, -4], [5, -3]]
    assert compressor.error.tolist() == [-1, 1, 2, 0, 0, -2, -2, 2, 0, 0]


def test_the_columns_of_one_bit_are_the_rows_of_weight_matrices():
    assert row_lengths([(2, 3), (4,), (2, 1, 2, 2)], alignment=8) == (3, 3, 2, 4, 4, 4, 4)
    assert row_lengths([(2, 3), (4,)]) == (3, 3, 4)
    compressor = Mixing.of(Parallel(compression="1bit")).make_compressor(6, (2, 4))
    octets, means = compressor.encode(torch.tensor([1.0, -2.0, 10.0, 20.0, 30.0, -5.0])).tensors
    assert octets.tolist() == [0b011101]
    assert means.tolist() == [[1, -2], [20, -5]]


@looped(
    ("wrong", "sentence"),
    [
        (lambda: Int8(4, block=0), "block is 0"),
        (lambda: TopK(4, fraction=0.0), "fraction is 0.0"),
        (lambda: TopK(2**31 + 1), "too many"),
        (lambda: OneBit(4, column=0), "column is 0"),
    ],
)
def test_options_out_of_range_are_refused(wrong, sentence):
    with pytest.raises(ExperimentError, match=sentence):
        wrong()
