"""Errors in the user's own code: which lines of a traceback are the user's."""

import sys
import sysconfig
import traceback
import warnings
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
LIBRARIES = frozenset(
    ("torch", "numpy", "scipy", "sklearn", "joblib", "typer", "click", "rich", "pydantic", "cloudpickle", "mpi4py")
)
"""What Tenfold itself calls; the lines of other installed packages count as the user's."""


def user_frames(error: BaseException) -> str:
    """Return the lines of an error's traceback that are the user's own code, on new lines; "" if there are none."""
    cause: BaseException | None = error
    while cause is not None:
        frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if is_users(frame.filename)]
        if frames:
            return "\n" + "".join(traceback.format_list(frames)).rstrip()
        cause = cause.__cause__ or cause.__context__
    return ""


def describe_error(error: BaseException) -> str:
    """Return an error in the user's code as "ValueError: what was wrong", followed by the user's own lines.

    An error without any of those is a mistake in Tenfold or in a library, and is returned with its whole traceback.
    """
    frames = user_frames(error)
    if not frames:
        return "".join(traceback.format_exception(error)).rstrip()
    return "".join(traceback.format_exception_only(error)).rstrip() + frames


def definition_of(function: object) -> str:
    """Return where a function of the user's is defined, as a traceback shows it, on a new line; "" if it is unknown."""
    code = getattr(function, "__code__", None)
    if code is None or not is_users(code.co_filename):
        return ""
    return f'\n  File "{code.co_filename}", line {code.co_firstlineno}, in {code.co_name}'


def warn_user(text: str) -> None:
    """Give a warning that names the line of the user's code that led to it, not a line of Tenfold's."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and not is_users(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


def is_users(filename: str) -> bool:
    """Return whether a file is the user's, and neither Python's, nor a library's, nor Tenfold's."""
    if filename.startswith("<frozen"):
        return False
    path = Path(filename)
    for installed in ("site-packages", "dist-packages"):
        if installed in path.parts:
            inside = path.parts[path.parts.index(installed) + 1 :]
            return inside[0].removesuffix(".py") not in LIBRARIES and not path.is_relative_to(PACKAGE)
    standard = (Path(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib"))
    return not any(path.is_relative_to(folder) for folder in (PACKAGE, *standard))
