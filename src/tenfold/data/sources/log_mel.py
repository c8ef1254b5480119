"""Sound as log-mel bands: the power of each frame in bands that are equally wide on the mel scale, as logarithms.

mel(f) = 2595 log10(1 + f / 700)
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RATE = 16_000
"""Samples of sound per second."""
HOP, WINDOW, BANDS = 160, 400, 40
"""Samples between two frames (10 ms), samples of a frame (25 ms), and bands."""
_FFT = 512


def log_mel(sound: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """Return [frames, bands] of sound at 16 kHz with values from -1 to 1; frame k is centred on k x 10 ms + 5 ms."""
    import numpy as np

    before = (WINDOW - HOP) // 2
    frames = len(sound) // HOP
    padded = np.pad(sound, (before, WINDOW))
    starts = np.arange(frames) * HOP
    windows = padded[starts[:, None] + np.arange(WINDOW)] * np.hanning(WINDOW)
    power = np.abs(np.fft.rfft(windows, _FFT)) ** 2
    found: NDArray[np.float64] = np.log(power @ mel_filters().T + 1e-6)
    return found


def mel_filters() -> "NDArray[np.float64]":
    """Return [bands, frequencies]: triangles that overlap by half, from 0 Hz to half the rate."""
    import numpy as np

    most = 2595 * np.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, most, BANDS + 2) / 2595) - 1)
    frequencies = np.fft.rfftfreq(_FFT, 1 / RATE)
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    return np.maximum(0, np.minimum(rising, falling))
