"""Recordings of spoken digits, to test networks on real voices that were trained on flite's.

A file is named by its digit: 7.wav, seven.wav, or 7_jackson_3.wav as in the Free Spoken Digit Dataset. A tenth of a
second of silence is added on either side, the pauses of the grammar. Nobody marked when phones end, so the labels are
spread evenly over a recording: they say which digit it is, and little about a frame.
"""

import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tenfold.common.files import open_regular
from tenfold.errors import DataError
from tenfold.papers.speech import HIGHEST_OF_RECORDINGS, HOP, RATE, log_mel, states_of
from tenfold.papers.speech_metrics import AFTER, DIGITS, DIGITS_ALONE

PACKAGE = "asterisk-core-sounds-en-wav"
DEBIAN_FOLDER = Path("/usr/share/asterisk/sounds/en_US_f_Allison/digits")
SILENCE_SECONDS = 0.1


def read_recordings(folder: Path) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Return log-mel bands up to 4 kHz, states and utterance of every frame, one utterance for each recorded digit."""
    named = [(path, digit) for path in sorted(folder.glob("*.wav")) if (digit := _digit_of(path)) is not None]
    if not named:
        raise DataError(
            f"{folder} holds no recordings of digits; install Debian's package {PACKAGE}, or give a folder whose WAV "
            "files are named by their digit: 7.wav, or 7_name.wav"
        )
    bands = [_bands_of(path) for path, _ in named]
    states = [states_of_digit(digit, len(frames)) for (_, digit), frames in zip(named, bands, strict=True)]
    utterance = np.repeat(np.arange(len(named)), [len(frames) for frames in bands])
    return np.concatenate(bands).astype(np.float32), np.concatenate(states), utterance


def _digit_of(path: Path) -> str | None:
    name, digits = path.stem.partition("_")[0], list(DIGITS)
    return name if name in DIGITS else digits[int(name)] if name in map(str, range(10)) else None


def _bands_of(path: Path) -> NDArray[np.float64]:
    try:
        with open_regular(path) as opened, wave.open(opened) as file:
            rate, form = file.getframerate(), (file.getnchannels(), file.getsampwidth())
            samples = file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise DataError(f"{path} cannot be read as a WAV file: {error}") from None
    if form != (1, 2) or rate < 2 * HIGHEST_OF_RECORDINGS:
        raise DataError(
            f"{path} has {form[0]} channels of {8 * form[1]} bits at {rate} Hz; it should have one of 16 bits at "
            f"{2 * HIGHEST_OF_RECORDINGS} Hz or more"
        )
    sound = np.frombuffer(samples[: len(samples) // 2 * 2], dtype="<i2") / 2**15
    return log_mel(np.pad(sound, round(SILENCE_SECONDS * rate)), rate, HIGHEST_OF_RECORDINGS)


def states_of_digit(digit: str, frames: int) -> NDArray[np.int64]:
    """Return the states of a digit between two pauses whose phones all last equally long."""
    phones = f"{DIGITS_ALONE} {DIGITS[digit]} {AFTER}".split()
    seconds = frames * HOP / RATE / len(phones)
    return states_of([(name, seconds * at) for at, name in enumerate(phones, 1)], frames)
