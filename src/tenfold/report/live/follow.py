"""Whether progress is shown: by default on a terminal and in a notebook, but not in logs."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from tenfold.launch.detect import detect_world
from tenfold.report.live.display import Display
from tenfold.report.live.notebook import in_notebook
from tenfold.runs import Emit, Event


def is_watched() -> bool:
    """Return whether a person sees this process's output: a terminal or a notebook, and under a launcher rank 0."""
    if not (sys.stderr and sys.stderr.isatty()) and not ("IPython" in sys.modules and in_notebook()):
        return False
    world = detect_world()
    return world is None or world.rank == 0


@contextmanager
def follow(
    make_display: Callable[[], Display], progress: bool | None, listen: Emit | None, otherwise: Emit
) -> Iterator[Emit]:
    """Yield the listener of a run: the caller's, a display, both, or `otherwise` where there is neither.

    `progress` is True to show one anywhere, False never to, and None to show one where a person looks and nobody
    listens already.
    """
    shows = progress if progress is not None else listen is None and is_watched()
    if not shows:
        yield listen or otherwise
        return
    with make_display() as display:

        def hear(event: Event) -> None:
            display.listen(event)
            if listen is not None:
                listen(event)

        yield hear


def reporter(progress: bool | Callable[[str], None] | None) -> Callable[[str], None]:
    """Return a function that shows a line of progress: the given one, or one that prints to standard error, or not.

    `progress` is True to print anywhere, False never to, and None to print where a person looks.
    """
    if callable(progress):
        return progress
    shows = is_watched() if progress is None else progress
    return partial(print, file=sys.stderr, flush=True) if shows else lambda _: None
