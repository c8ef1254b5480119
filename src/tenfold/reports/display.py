"""Displays of progress: a redrawn part of the terminal, or plain lines."""

import io
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Self

from rich.console import Console, Group
from rich.errors import LiveError
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tenfold.launchers import detect_world
from tenfold.reports.formatting import one_line
from tenfold.runs.events import Event, Warned
from tenfold.runs.recorder import print_to_runs

REFRESHES_PER_SECOND = 8


def as_plain_text(renderable: Any, width: int) -> str:
    """Return the text on a terminal of this width, without colors."""
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(renderable)
    return file.getvalue().rstrip("\n")


class Display(ABC):
    """Shows progress while its `with` block lasts: a live display on a terminal, plain lines elsewhere.

    It writes to standard error unless it is given a console. Rich draws in a separate thread.
    """

    _shown: ClassVar[Live | None] = None
    """The display that currently redraws the terminal."""
    writes_lines = True
    """Whether lines are shown, and not only recorded."""

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.quiet = quiet
        self._live: Live | None = None
        self._notebook: NotebookView | None = None
        self._in_notebook = console is None and in_notebook()
        self._lines: list[Text] = []
        self._finished = False

    @abstractmethod
    def listen(self, event: Event) -> None:
        """Update the display by an event."""

    @abstractmethod
    def drawing(self) -> Table:
        """Draw the current state; called by rich's thread a few times per second."""

    def __enter__(self) -> Self:
        console = self.console
        if self._in_notebook:
            if not self.quiet:
                self._notebook = NotebookView(self._whole)
        elif console.is_terminal and not (self.quiet or console.is_dumb_terminal or console.is_jupyter):
            self._start_live()
        return self

    def _start_live(self) -> None:
        """Redraw the terminal from now on, unless another display already does, which then shows this run, too."""
        live = Live(
            get_renderable=self.drawing,
            console=self.console,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
        )
        try:
            if Display._shown is not None:
                raise LiveError
            live.start()
        except LiveError:  # older versions of rich refuse the second of two
            self.quiet = True
        else:
            self._live = Display._shown = live

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()
            self._live = Display._shown = None
        if self._notebook:
            self._finished = True
            self._notebook.close()
            self._notebook = None

    def _whole(self) -> Group:
        """Return the lines so far and, until the end, the drawing below them."""
        return Group(*self._lines, *([] if self._finished else [self.drawing()]))

    def _warn(self, event: Warned, who: str = "") -> None:
        self._say(f"{who}warning: {one_line(event.text)}", style="yellow")

    def _say(self, line: str, style: str = "") -> None:
        if self.quiet:
            return
        try:
            if self._notebook:
                self._lines.append(Text(line, style=style))
            elif self._live:
                self.console.print(Text(line, style=style))
            if self._notebook or self._live or not self.writes_lines:
                print_to_runs(f"{line}\n")
            else:
                print(line, file=self.console.file, flush=True)
        except OSError:  # the reader has closed the stream, which must not stop the training
            self.quiet = True


WIDTH = 110
REFRESH_SECONDS = 0.25


def as_html(renderable: Any) -> str:
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


def reporter(progress: bool | Callable[[str], None] | None) -> Callable[[str], None]:
    """Return a function that shows a line of progress: the given one, or one that prints to standard error, or not.

    `progress` is True to always print, False to never print, and None to print only if a person is watching.
    """
    if callable(progress):
        return progress
    shows = is_watched() if progress is None else progress
    return partial(print, file=sys.stderr, flush=True) if shows else lambda _: None


def is_watched() -> bool:
    """Return whether a person sees this process's output: in a terminal or a notebook; under a launcher, on rank 0."""
    if not (sys.stderr and sys.stderr.isatty()) and not ("IPython" in sys.modules and in_notebook()):
        return False
    world = detect_world()
    return world is None or world.rank == 0


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None
