"""Frames of speech and their labels; nothing here needs flite, but for the last test."""

import itertools
import shutil

import numpy as np
import pytest
import torch

from tenfold.data import load
from tenfold.errors import DataError, ModelError
from tenfold.papers import speech
from tenfold.papers.speech import BANDS, HOP, PHONES, RATE, log_mel, mel_filters, sentence, states_of
from tenfold.papers.speech_metrics import (
    AFTER,
    BEFORE,
    DIGITS,
    digits_said,
    edits,
    phone_accuracy,
    utterances,
    word_error_rate,
)


def test_a_tone_is_loudest_in_its_band():
    tone = np.sin(2 * np.pi * 1000 * np.arange(RATE) / RATE)
    bands = log_mel(tone)
    assert bands.shape == (100, BANDS)
    loudest = int(bands[50].argmax())
    frequencies = np.fft.rfftfreq(512, 1 / RATE)
    assert abs(frequencies[mel_filters()[loudest].argmax()] - 1000) < 150


def test_frames_are_labeled_with_the_thirds_of_phones():
    states = speech.states_of([("pau", 0.03), ("s", 0.09)], 10)
    pau, s = speech.PHONES.index("pau") * 3, speech.PHONES.index("s") * 3
    assert states.tolist() == [pau, pau + 1, pau + 2, s, s, s + 1, s + 1, s + 2, s + 2, s + 2]
    assert len(speech.PHONES) * speech.THIRDS == 123


def test_frames_of_other_utterances_are_never_spliced_in():
    bands = np.arange(5, dtype=np.float32)[:, None]
    spliced = speech.splice(bands, np.array([0, 0, 0, 1, 1]), 1)
    assert spliced.tolist() == [[0, 0, 1], [0, 1, 2], [1, 2, 2], [3, 3, 4], [3, 4, 4]]


def test_sentences_are_the_same_for_the_same_number():
    assert sentence(3) == sentence(3)
    assert len({sentence(number) for number in range(100)}) > 60


def test_a_phone_is_right_whatever_its_third():
    outputs = torch.eye(9)[[0, 1, 5, 8]]
    assert float(phone_accuracy(outputs, torch.tensor([2, 1, 2, 7]))) == pytest.approx(0.75)


def test_the_package_is_named_where_flite_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("TENFOLD_CACHE", str(tmp_path))
    monkeypatch.setattr(speech.shutil, "which", lambda _: None)
    with pytest.raises(DataError, match="package"):
        load("speech")
    (tmp_path / "data" / "speech").mkdir(parents=True)
    (tmp_path / "data" / "speech" / f"120-utterances-{speech.VERSION}.npz").write_bytes(b"PK\x03\x04 half of it")
    with pytest.raises(DataError, match="damaged"):
        load("speech")
    with pytest.raises(DataError, match=r"data\.options\.voices"):
        load("speech", options={"voices": 3})


@pytest.mark.skipif(shutil.which("flite") is None, reason="flite is not installed")
def test_speech_is_made_once_and_cut_by_utterance(tmp_path, monkeypatch):
    monkeypatch.setenv("TENFOLD_CACHE", str(tmp_path))
    made = load("speech", options={"utterances": 5, "context": 1})
    assert made.shape == (3 * BANDS,)
    assert made.classes == 123
    counts = np.bincount(speech._spoken(5)[2])
    assert all(
        count == counts[number] for number, count in zip(*np.unique(made.groups, return_counts=True), strict=True)
    )
    monkeypatch.setattr(speech.shutil, "which", lambda _: None)
    assert load("speech", options={"utterances": 5, "context": 1}).fingerprint() == made.fingerprint()


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
