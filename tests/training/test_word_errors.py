"""The word error rate of spoken digits."""

import itertools

import numpy as np
import pytest
import torch

from tenfold.errors import ModelError
from tenfold.papers.speech import HOP, PHONES, RATE, states_of
from tenfold.papers.speech_metrics import AFTER, BEFORE, DIGITS, digits_said, edits, utterances, word_error_rate


def said(phones: str, frames: int = 4) -> np.ndarray:
    """Return the states of phones that last so many frames each."""
    names = phones.split()
    seconds = HOP / RATE * frames
    return states_of([(name, (at + 1) * seconds) for at, name in enumerate(names)], frames * len(names))


def string_of(*digits: str, frames: int = 4) -> np.ndarray:
    return said(" ".join([BEFORE, *(DIGITS[digit] for digit in digits), AFTER]), frames)


OTHER = "pau dh ax g ey t pau"


@pytest.mark.parametrize("frames", [2, 3, 7])
def test_digits_are_read_from_the_true_states_however_fast_they_are_said(frames):
    digits = ["six", "seven", "seven", "eight", "three", "nine", "zero", "one", "two", "four", "five"]
    assert digits_said(string_of(*digits, frames=frames)) == digits
    assert digits_said(said(OTHER, frames)) == []


def test_utterances_are_cut_between_two_pauses():
    parts = [string_of("one"), said(OTHER), string_of("two", "two")]
    ends = np.cumsum([0, *map(len, parts)]).tolist()
    assert utterances(np.concatenate(parts)) == list(itertools.pairwise(ends))


def test_errors_are_counted_in_digits_strings_only():
    targets = torch.from_numpy(np.concatenate([string_of("one", "nine", "six"), said(OTHER)]))
    outputs = 5.0 * torch.eye(len(PHONES) * 3)[targets]
    assert float(word_error_rate(outputs, targets)) == 0
    heard = torch.from_numpy(np.concatenate([string_of("one", "five", "six"), said(OTHER)]))
    assert float(word_error_rate(5.0 * torch.eye(len(PHONES) * 3)[heard], targets)) == pytest.approx(1 / 3)


def test_edits():
    assert edits(["one", "two"], ["one", "two"]) == 0
    assert edits([], ["one", "two"]) == 2
    assert edits(["two", "three", "four"], ["one", "two", "four"]) == 2


def test_without_digits_there_is_no_rate():
    assert np.isnan(float(word_error_rate(torch.zeros(28, 123), torch.from_numpy(said(OTHER)))))


def test_other_data_are_refused_in_a_sentence():
    with pytest.raises(ModelError, match="states"):
        word_error_rate(torch.zeros(5, 10), torch.zeros(5, dtype=torch.int64))
