"""Chromium, for tests that look at pages."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
NEEDS_BROWSER = (
    pytest.mark.skipif(find_spec("playwright") is None, reason="looking at pages needs playwright"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"looking at pages needs {CHROMIUM}"),
)


@contextmanager
def started_browser() -> Iterator[Any]:
    """Start a browser for this block."""
    from playwright.sync_api import sync_playwright  # here, as not every process that shares the tests needs it

    with sync_playwright() as start:
        browser = start.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield browser
        browser.close()


def widths_that_overflow(page: Any, address: str, widths: tuple[int, ...] = (420, 1400)) -> list[int]:
    """Return the widths of a window that a page does not fit into."""
    too_narrow = []
    for width in widths:
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(address)
        if page.evaluate("document.documentElement.scrollWidth") > width:
            too_narrow.append(width)
    return too_narrow
