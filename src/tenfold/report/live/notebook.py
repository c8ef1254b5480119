"""Progress in a notebook: one output below the cell that is replaced while something runs."""

import io
import sys
import threading
from collections.abc import Callable
from typing import Any

from rich.console import Console

WIDTH = 110
REFRESH_SECONDS = 0.25


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


def as_html(renderable: Any) -> str:
    """Return what a terminal would show as HTML."""
    console = Console(file=io.StringIO(), width=WIDTH, record=True, force_terminal=True, force_jupyter=False)
    console.print(renderable)
    style = "margin:0;line-height:1.3;white-space:pre"
    return console.export_html(inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>')


class NotebookView:
    """An output of the current cell, redrawn a few times per second until it is closed."""

    def __init__(self, draw: Callable[[], Any]) -> None:
        from IPython.display import HTML, display

        self._draw = draw
        self._html = HTML
        self._shown = as_html(draw())
        self._handle: Any = display(HTML(self._shown), display_id=True)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._redraw, name="tenfold-notebook", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Draw the last state."""
        self._closed.set()
        self._thread.join()
        self._update()

    def _redraw(self) -> None:
        while not self._closed.wait(REFRESH_SECONDS):
            self._update()

    def _update(self) -> None:
        now = as_html(self._draw())
        if now != self._shown:
            self._shown = now
            self._handle.update(self._html(now))
