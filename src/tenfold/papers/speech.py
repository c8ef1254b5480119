"""Speech: sentences that flite says, as frames of log-mel bands with exact labels.

A band is equally wide on the mel scale, mel(f) = 2595 log10(1 + f / 700); its power is taken as a logarithm.
"""

import random
import shutil
import subprocess
import tempfile
import wave
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tenfold.common.files import open_regular, replacing
from tenfold.data.sources import Source, SourceOptions, cache
from tenfold.errors import DataError
from tenfold.experiment.values import Count, NonNegative

if TYPE_CHECKING:
    from tenfold.data.part import Splits


class SpeechOptions(SourceOptions):
    """The number of sentences, the frames of a sample, and recordings to test on."""

    utterances: Count = 120
    """Sentences, about four seconds each."""
    context: NonNegative = 5
    """Frames on either side of the one that is labeled."""
    recordings: bool | str = False
    """Test on recordings of digits: those of a Debian package (true), or the WAV files of a folder. Bands then end at
    4 kHz."""


RATE = 16_000
"""Samples of sound per second."""
HOP, WINDOW, BANDS = 160, 400, 40
"""Samples between two frames (10 ms), samples of a frame (25 ms), and bands."""
_FFT = 512
HIGHEST, HIGHEST_OF_RECORDINGS = RATE // 2, 4000
"""The frequency in Hz at which the last band ends; recordings at 8 kHz hold nothing above 4 kHz."""


def log_mel(sound: NDArray[np.float64], rate: int = RATE, highest: int = HIGHEST) -> NDArray[np.float64]:
    """Return [frames, bands] of sound with values from -1 to 1; frame k is centered on k x 10 ms + 5 ms."""
    hop, window, fft = (count * rate // RATE for count in (HOP, WINDOW, _FFT))
    before = (window - hop) // 2
    frames = len(sound) // hop
    padded = np.pad(sound, (before, window))
    starts = np.arange(frames) * hop
    windows = padded[starts[:, None] + np.arange(window)] * np.hanning(window)
    power = np.abs(np.fft.rfft(windows, fft)) ** 2 * (RATE / rate) ** 2
    features: NDArray[np.float64] = np.log(power @ mel_filters(rate, highest).T + 1e-6)
    return features


def mel_filters(rate: int = RATE, highest: int = HIGHEST) -> NDArray[np.float64]:
    """Return [bands, frequencies]: triangles that overlap by half, from 0 Hz to the highest frequency."""
    most = 2595 * np.log10(1 + highest / 700)
    edges = 700 * (10 ** (np.linspace(0, most, BANDS + 2) / 2595) - 1)
    frequencies = np.fft.rfftfreq(_FFT * rate // RATE, 1 / rate)
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    return np.maximum(0, np.minimum(rising, falling))


WHO = [
    "the captain",
    "my sister",
    "an old farmer",
    "the young doctor",
    "our neighbor",
    "a quiet child",
    "the judge",
    "your brother",
]
DOES = ["opened", "carried", "measured", "painted", "forgot", "repaired", "counted", "moved", "watched", "chose"]
WHAT = [
    "the yellow boat",
    "a heavy chair",
    "three small boxes",
    "the broken clock",
    "her winter coat",
    "a large map",
    "the gate",
]
WHERE = [
    "near the river",
    "under the table",
    "before noon",
    "behind the church",
    "after the storm",
    "in the kitchen",
    "on Thursday",
]
ORDERS = ["please bring", "quickly close", "do not touch", "carefully lift", "slowly turn", "try to find"]
DIGITS = {
    "zero": "z ih r ow",
    "one": "w ah n",
    "two": "t uw",
    "three": "th r iy",
    "four": "f ao r",
    "five": "f ay v",
    "six": "s ih k s",
    "seven": "s eh v ax n",
    "eight": "ey t",
    "nine": "n ay n",
}
"""The pronunciation in flite."""
BEFORE, AFTER = "pau dh ax n ah m b er ih z", "pau"
DIGITS_ALONE = "pau"
"""The silence before the digits of a recording."""


def sentence(number: int) -> str:
    draw = random.Random(number)
    kind = draw.randrange(4)
    if kind == 0:
        return f"{draw.choice(ORDERS)} {draw.choice(WHAT)} {draw.choice(WHERE)}"
    if kind == 1:
        digits = " ".join(draw.choice(list(DIGITS)) for _ in range(draw.randint(4, 8)))
        return f"the number is {digits}"
    if kind == 2:
        return f"{draw.choice(WHO)} {draw.choice(DOES)} {draw.choice(WHAT)} {draw.choice(WHERE)}"
    return f"{draw.choice(WHERE)} {draw.choice(WHO)} {draw.choice(DOES)} {draw.choice(WHAT)}"


# Speech: sentences of a small grammar, spoken by flite in four voices, with the exact time of every phone.
#
# A sample is a frame of 10 ms: 40 log-mel bands of the frame and of the frames around it. It is labeled with the
# third of the phone that it lies in, 41 phones x 3 = 123 states. Parts and folds are cut by utterance. What was
# spoken is cached.

NAME = "speech"
PROGRAM = "flite"
VOICES = ("slt", "rms", "awb", "kal16")
PHONES = [
    *("aa", "ae", "ah", "ao", "aw", "ax", "ay", "b", "ch", "d", "dh", "eh", "er", "ey", "f", "g", "hh", "ih", "iy"),
    *("jh", "k", "l", "m", "n", "ng", "ow", "oy", "p", "pau", "r", "s", "sh", "t", "th", "uh", "uw", "v", "w", "y"),
    *("z", "zh"),
]
THIRDS = 3
VERSION = 1
"""The version of the cached file; increased when sentences or features change."""
MISSING = "speech is made by the program flite, which is not installed; Debian's package is called flite"


def load_speech(options: Mapping[str, Any]) -> "Splits":
    """Return all frames, with the utterance of each as its group."""
    import torch

    from tenfold.data.part import Splits, Tensors

    chosen = SpeechOptions(**options)
    recorded = None
    if chosen.recordings:
        given = chosen.recordings is not True
        recorded = read_recordings(Path(str(chosen.recordings)).expanduser() if given else DEBIAN_FOLDER)
    spoken = _spoken(chosen.utterances, HIGHEST if recorded is None else HIGHEST_OF_RECORDINGS)
    mean, deviation = spoken[0].mean(0), spoken[0].std(0)

    def part(bands: NDArray[np.float32], states: NDArray[np.int64], utterance: NDArray[np.int64]) -> Tensors:
        x = splice((bands - mean) / deviation, utterance, chosen.context)
        return Tensors(torch.from_numpy(x), torch.from_numpy(states))

    train, outputs = part(*spoken), len(PHONES) * THIRDS
    return Splits(
        name=NAME,
        train=train,
        test=None if recorded is None else part(*recorded),
        shape=train.x.shape[1:],
        classes=outputs,
        outputs=outputs,
        groups=spoken[2],
    )


def splice(bands: NDArray[np.float32], utterance: NDArray[np.int64], context: int) -> NDArray[np.float32]:
    """Return each frame beside those around it; at the ends of an utterance its first or last frame is repeated."""
    starts = np.searchsorted(utterance, utterance, side="left")
    ends = np.searchsorted(utterance, utterance, side="right") - 1
    frames = np.arange(len(bands))
    around = [bands[np.clip(frames + shift, starts, ends)] for shift in range(-context, context + 1)]
    return np.concatenate(around, axis=1)


def states_of(phones: list[tuple[str, float]], frames: int) -> NDArray[np.int64]:
    """Return the state of each frame: three times the number of its phone, plus the third of it that it lies in."""
    middle = (np.arange(frames) + 0.5) * HOP / RATE
    ends = np.array([end for _, end in phones])
    starts = np.concatenate([[0.0], ends[:-1]])
    at = np.minimum(np.searchsorted(ends, middle, side="right"), len(phones) - 1)
    share = (middle - starts[at]) / np.maximum(ends[at] - starts[at], 1e-6)
    numbers = np.array([PHONES.index(name) for name, _ in phones])
    states: NDArray[np.int64] = numbers[at] * THIRDS + np.clip((share * THIRDS).astype(np.int64), 0, THIRDS - 1)
    return states


def _spoken(
    utterances: int, highest: int = HIGHEST
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Return log-mel bands, states and utterance of every frame, from the cache or newly spoken."""
    from tenfold.data.files import read_arrays

    bandwidth = "" if highest == HIGHEST else f"to-{highest}-hertz-"
    path = cache() / NAME / f"{utterances}-utterances-{bandwidth}{VERSION}.npz"
    if path.exists():
        try:
            stored = read_arrays(path)
            return stored["bands"], stored["states"], stored["utterance"]
        except (DataError, KeyError):
            raise DataError(f"{path} is damaged; delete it, and the speech will be synthesized again") from None
    if shutil.which(PROGRAM) is None:
        raise DataError(MISSING)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(4) as pool:
        spoken = list(pool.map(lambda number: _utterance(number, Path(folder), highest), range(utterances)))
    bands = np.concatenate([item[0] for item in spoken]).astype(np.float32)
    states = np.concatenate([item[1] for item in spoken])
    utterance = np.repeat(np.arange(utterances), [len(item[1]) for item in spoken])
    _store(path, bands=bands, states=states, utterance=utterance)
    return bands, states, utterance


def _utterance(number: int, folder: Path, highest: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    path = folder / f"{number}.wav"
    command = [PROGRAM, "-voice", VOICES[number % len(VOICES)], "-psdur", "-t", sentence(number), "-o", str(path)]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        phones = [(name, float(end)) for name, _, end in (token.rpartition(":") for token in said.split())]
        with wave.open(str(path)) as file:
            sound = np.frombuffer(file.readframes(file.getnframes()), dtype=np.int16) / 2**15
    except (OSError, subprocess.SubprocessError, ValueError, wave.Error) as error:
        raise DataError(f"flite failed on '{sentence(number)}': {error}") from None
    bands = log_mel(sound, highest=highest)
    return bands, states_of(phones, len(bands))


def _store(path: Path, **arrays: NDArray[Any]) -> None:
    try:
        with replacing(path) as file:
            np.savez(file, allow_pickle=False, **arrays)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from None


# Recordings of spoken digits, to test networks on real voices that were trained on flite's.
#
# A file is named by its digit: 7.wav, seven.wav, or 7_jackson_3.wav as in the Free Spoken Digit Dataset. A tenth of a
# second of silence is added on either side, the pauses of the grammar. Nobody marked when phones end, so the labels are
# spread evenly over a recording: they say which digit it is, and little about a frame.

PACKAGE = "asterisk-core-sounds-en-wav"
DEBIAN_FOLDER = Path("/usr/share/asterisk/sounds/en_US_f_Allison/digits")
SILENCE_SECONDS = 0.1


def read_recordings(folder: Path) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Return log-mel bands up to 4 kHz, states and utterance of every frame, one utterance for each recorded digit."""
    named = [(path, digit) for path in sorted(folder.glob("*.wav")) if (digit := _digit_of(path)) is not None]
    if not named:
        raise DataError(
            f"{folder} has no recordings of digits; install Debian's package {PACKAGE}, or give a folder of WAV "
            "files named by their digit: 7.wav, or 7_name.wav"
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
            f"{path} has {form[0]} channels of {8 * form[1]} bits at {rate} Hz; it should have one channel of 16 bits "
            f"at {2 * HIGHEST_OF_RECORDINGS} Hz or more"
        )
    sound = np.frombuffer(samples[: len(samples) // 2 * 2], dtype="<i2") / 2**15
    return log_mel(np.pad(sound, round(SILENCE_SECONDS * rate)), rate, HIGHEST_OF_RECORDINGS)


def states_of_digit(digit: str, frames: int) -> NDArray[np.int64]:
    """Return the states of a digit between two pauses whose phones all last equally long."""
    phones = f"{DIGITS_ALONE} {DIGITS[digit]} {AFTER}".split()
    seconds = frames * HOP / RATE / len(phones)
    return states_of([(name, seconds * at) for at, name in enumerate(phones, 1)], frames)


SPEECH = Source(
    name=NAME,
    description=f"spoken sentences made by flite: frames of {BANDS} log-mel bands, 123 classes (thirds of 41 phones)",
    make=load_speech,
    find=lambda: folder if (folder := cache() / NAME).is_dir() else None,
    absent="made by flite when it is first used",
)
