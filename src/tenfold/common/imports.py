"""Importing by name: a user's own objects, "package.module:callable", optional packages, and names on first use."""

import importlib
import importlib.abc
import importlib.util
import random
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tenfold.common.trust import check_trusted, is_in_current_folder
from tenfold.errors import ExperimentError, MachineError, TenfoldError
from tenfold.registry import suggest


def resolve(path: str, what: str, error: type[TenfoldError] = ExperimentError) -> Any:
    """Return what "package.module:name" names, looking in the current folder too.

    `what` is its name in errors ("data", "model"). Whatever the module itself raises keeps its traceback. A path
    that was read from a record or a file is refused unless it is trusted (see `common/trust.py`).
    """
    module_name, _, attributes = path.partition(":")
    if not module_name or not attributes:
        raise error(f"{what} '{path}' is not an import path; it should look like 'package.module:callable'")
    check_trusted(path, what, error)
    here = look_in_current_folder(module_name)
    try:
        member: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as missing:
        at_fault = missing.name or module_name
        if at_fault != module_name and not module_name.startswith(f"{at_fault}."):
            raise
        raise error(
            f"{what} '{path}': there is no module '{at_fault}', neither installed nor in the folder {here}"
        ) from None
    except SyntaxError as mistake:
        place = f"{mistake.filename or module_name}, line {mistake.lineno or 1}"
        raise error(f"{what} '{path}' cannot be imported: {place}: {mistake.msg}") from None
    for attribute in attributes.split("."):
        if not hasattr(member, attribute):
            public = [name for name in dir(member) if not name.startswith("_")]
            raise error(f"{what} '{path}': '{module_name}' has no '{attribute}'; {suggest(attribute, public)}")
        member = getattr(member, attribute)
    return member


def look_in_current_folder(module: str) -> str:
    """Make the modules in the current folder importable if the wanted one is there, and return the folder's path.

    It then comes before all other folders. Otherwise it is not searched, so that nothing else in it is imported.
    """
    here = str(Path.cwd())
    if here not in sys.path[:1] and is_in_current_folder(module):
        with suppress(ValueError):
            sys.path.remove(here)
        sys.path.insert(0, here)
    return here


def tenfold_command(*arguments: str) -> list[str]:
    """Return the command that runs `tenfold` in another process."""
    return [*python_command(), "-m", "tenfold", *arguments]


def python_command() -> list[str]:
    """Return the command that starts Python in another process, which looks for modules where this one does.

    `python -m` or `-c` alone would look in the current folder first, which may be somebody else's.
    """
    looks_here = not {"", str(Path.cwd())}.isdisjoint(sys.path)
    return [sys.executable, *([] if looks_here else ["-P"])]


def optional_module(name: str, what: str, extra: str) -> Any:
    """Import an optional module; the error names the feature that needs it and the extra that installs it."""
    try:
        module = importlib.import_module(name)
        if module.__spec__ is not None and module.__spec__.origin is None:  # a folder, such as Ray's own /tmp/ray
            raise ModuleNotFoundError(name=name)
        return module
    except ModuleNotFoundError as missing:
        package = name.partition(".")[0]
        if (missing.name or package).partition(".")[0] != package:
            raise MachineError(f"{what} needs the package {package}, which cannot be imported: {missing}") from None
        raise MachineError(
            f"{what} needs the package {package}, which is not installed: pip install 'tenfold[{extra}]'"
        ) from None


def call_when_imported(name: str, function: Callable[[], object]) -> None:
    """Call a function once a module was imported: now, if it was already, and otherwise right after that."""
    if name in sys.modules:
        function()
    else:
        sys.meta_path.insert(0, _AfterImport(name, function))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds a module as all other finders do, and calls a function after it was executed."""

    def __init__(self, name: str, function: Callable[[], object]) -> None:
        self._name, self._function = name, function

    def find_spec(self, fullname: str, *_: Any) -> Any:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_call(module: Any) -> None:
            execute(module)
            self._function()

        spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec


def lazy_attributes(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose names live in other modules: {name: module}; or are modules."""

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'; it has {', '.join(sorted(homes))}")
        state = random.getstate() if homes[name] not in sys.modules else None
        home = importlib.import_module(homes[name])
        if state is not None:
            random.setstate(state)  # rich draws from it while it is imported
        return home if homes[name] == f"{package}.{name}" else getattr(home, name)

    return get


PACKAGE = Path(__file__).parents[1]
LIBRARIES = frozenset(
    ("torch", "numpy", "scipy", "sklearn", "joblib", "typer", "click", "rich", "pydantic", "cloudpickle", "mpi4py")
) | {"ray", "dask", "distributed", "tornado", "optuna"}
"""What Tenfold itself calls; the lines of other installed packages count as the user's."""


def user_frames(error: BaseException) -> str:
    """Return the lines of an error's traceback that are the user's own code, on new lines; "" if there are none."""
    cause: BaseException | None = error
    while cause is not None:
        frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if is_users(frame.filename)]
        if frames:
            written = [frame for frame in frames if not frame.filename.startswith("<eval_with_key>")]  # by torch.fx
            return "\n" + "".join(traceback.format_list(written or frames)).rstrip()
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
