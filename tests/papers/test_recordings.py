"""Recordings of digits, on which networks that heard only flite are tested; those of the Debian package where it is."""

import shutil
import wave

import numpy as np
import pytest
import torch

from tenfold.data import load
from tenfold.errors import DataError
from tenfold.papers.speech import (
    BANDS,
    DEBIAN_FOLDER,
    DIGITS,
    PACKAGE,
    PHONES,
    read_recordings,
    states_of,
    states_of_digit,
)
from tenfold.papers.speech_metrics import digit_error_rate, digits_said, utterances, word_error_rate

TONE_HZ = 1000
needs_flite = pytest.mark.skipif(shutil.which("flite") is None, reason="flite is not installed")


def record(path, *, seconds=0.3, rate=8000, channels=1, hertz=TONE_HZ):
    times = np.arange(round(seconds * rate)) / rate
    sound = np.repeat((2**14 * np.sin(2 * np.pi * hertz * times)).astype("<i2"), channels)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(sound.tobytes())


def heard(*digits):
    """Return the labels of recordings of these digits, and outputs of a network that is sure of them."""
    states = torch.from_numpy(np.concatenate([states_of_digit(digit, 50) for digit in digits]))
    return states, sure_of(states)


def sure_of(states):
    return 5.0 * torch.eye(len(PHONES) * 3)[states]


def test_a_recording_is_the_digit_in_its_name(tmp_path):
    for name in ("3", "seven", "0_jackson_12"):
        record(tmp_path / f"{name}.wav")
    record(tmp_path / "9.wav", seconds=0.05)
    for name in ("10", "day-3", "at"):
        record(tmp_path / f"{name}.wav")
    bands, states, utterance = read_recordings(tmp_path)
    cuts = utterances(states)
    assert [digits_said(states[start:end]) for start, end in cuts] == [["zero"], ["three"], ["nine"], ["seven"]]
    assert [end - start for start, end in cuts] == np.bincount(utterance).tolist() == [50, 50, 25, 50]
    assert bands.shape == (175, BANDS)


def test_a_tone_has_the_same_bands_at_every_rate(tmp_path):
    made = []
    for rate in (8000, 16_000, 48_000):
        record(tmp_path / "1.wav", rate=rate)
        made.append(read_recordings(tmp_path)[0][25])
    assert np.abs(made[0] - made[1]).max() < 1
    assert len({int(bands.argmax()) for bands in made}) == 1
    assert np.allclose([bands.max() for bands in made], made[0].max(), atol=0.1)


def test_a_folder_without_digits_names_the_package(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(DataError, match=PACKAGE):
            load("speech", options={"recordings": str(folder)})


def test_files_that_cannot_be_used_are_named(tmp_path):
    for problem, make in {
        "Hz": lambda path: record(path, rate=4000),
        "channels": lambda path: record(path, channels=2),
        "WAV": lambda path: path.write_bytes(b"RIFF of something else"),
    }.items():
        make(tmp_path / "5.wav")
        with pytest.raises(DataError, match=rf"5\.wav .*{problem}"):
            read_recordings(tmp_path)


def test_a_digit_that_is_taken_for_another_is_one_error_in_each_rate():
    truth, outputs = heard("four", "nine")
    assert float(digit_error_rate(outputs, truth)) == float(word_error_rate(outputs, truth)) == 0
    _, outputs = heard("five", "nine")
    assert float(digit_error_rate(outputs, truth)) == float(word_error_rate(outputs, truth)) == 0.5


def test_an_added_digit_is_an_error_unless_it_is_known_that_there_is_one():
    truth, _ = heard("two")
    phones = ["pau", "t", "uw", "t", "uw", "pau"]
    twice = sure_of(torch.from_numpy(states_of([(name, (at + 1) / 12) for at, name in enumerate(phones)], 50)))
    assert float(digit_error_rate(twice, truth)) == 0
    assert float(word_error_rate(twice, truth)) == 1


@needs_flite
def test_networks_are_trained_on_flite_and_tested_on_recordings(tmp_path, monkeypatch):
    monkeypatch.setenv("TENFOLD_CACHE", str(tmp_path / "cache"))
    record(tmp_path / "6.wav")
    made = load("speech", options={"utterances": 5, "context": 1, "recordings": str(tmp_path)})
    assert len(made.parts["test"]) == 50
    assert made.shape == (3 * BANDS,)
    wide = load("speech", options={"utterances": 5, "context": 1})
    assert len(wide.train) + len(wide.parts["test"]) == len(made.train)


@pytest.mark.skipif(not DEBIAN_FOLDER.is_dir(), reason=f"Debian's package {PACKAGE} is not installed")
def test_the_package_has_every_digit_once():
    bands, states, _ = read_recordings(DEBIAN_FOLDER)
    assert [digits_said(states[start:end]) for start, end in utterances(states)] == [[digit] for digit in DIGITS]
    assert np.isfinite(bands).all()
