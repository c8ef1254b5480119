"""Frames of speech and their labels; nothing here needs flite, but for the last test."""

import shutil

import numpy as np
import pytest
import torch

from tenfold.data import load
from tenfold.errors import DataError
from tenfold.papers import speech
from tenfold.papers.speech import BANDS, RATE, log_mel, mel_filters, sentence
from tenfold.papers.speech_metrics import phone_accuracy


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
