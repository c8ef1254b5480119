"""How busy the machine is, with all programs that run on it."""

import os


def machine_load() -> float | None:
    """Return the number of busy or waiting processes over the last minute; None where the system does not tell it."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None
