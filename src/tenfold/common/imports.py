"""Import by name: users' own objects, optional packages, and import paths in records, which need trust.

Importing runs code. An import path from the caller is imported. An import path from a run store or a file is imported
only if this user has named it before, for the same files; the list of these is stored outside of all run stores.
"""

import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import logging
import os
import random
import stat
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenfold.errors import ExperimentError, MachineError, TenfoldError
from tenfold.registry import suggest

HARMLESS = ("torch.nn", "torch.optim")
"""Packages of torch whose layers, losses, optimizers and schedules do nothing but compute."""
FUNCTIONS = "torch.nn.functional"
"""The same of functions."""
DEEPEST = 8
"""Levels of tables and lists in which a name of something to import can stand; options may go deeper."""
LARGEST_LIST = 2**24
_logger = logging.getLogger("tenfold")
_named_here: set[tuple[str, ...]] = set()
"""The import paths that this process has named, for the case that the list cannot be written."""
_written_here: set[bytes] = set()
"""The digests of the pickles that this process has written."""


@dataclass(frozen=True)
class Origin:
    """Where an import path was read."""

    name: str
    """Its name in a sentence, such as "run 3"."""
    way_out: str = "if you trust it, use --trust on the command line, or trust=True in Python"
    trusts_user_code: bool = False
    """Whether modules that are not installed, such as those in the current folder, count as the user's own."""
    is_trusted: bool = False
    """Whether the user said that this time all of it may be imported."""


class RecordedPath(str):
    """An import path from a record or a file; `resolve` imports it only if it is trusted."""

    __slots__ = ("origin",)
    origin: Origin

    def __new__(cls, path: str, origin: Origin) -> "RecordedPath":
        """Mark an import path with where it was read."""
        marked = super().__new__(cls, path)
        marked.origin = origin
        return marked

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordedPath, (str(self), self.origin)


def mark_paths(value: Any, origin: Origin, depth: int = DEEPEST) -> Any:
    """Return tables and lists as they were read, with every text that could be an import path marked."""
    if isinstance(value, dict) and depth:
        return {key: mark_paths(item, origin, depth - 1) for key, item in value.items()}
    if isinstance(value, list) and depth:
        return [mark_paths(item, origin, depth - 1) for item in value]
    return RecordedPath(value, origin) if isinstance(value, str) and ":" in value else value


def check_trusted(path: str, what: str, error: type[TenfoldError] = ExperimentError) -> None:
    """Raise an error for an import path of a record or a file that this user has not named before."""
    if not isinstance(path, RecordedPath) or path.origin.is_trusted:
        return
    module, _, attribute = path.partition(":")
    files = locate(module)
    if files is None:
        raise error(f"{path.origin.name} names {what} '{path}', but there is no module '{module}'")
    if _is_torchs(module, attribute, files) or (path.origin.trusts_user_code and not _are_installed(files)):
        return
    if (key := (str(path), *files)) not in _named_here and key not in _read_list():
        raise error(
            f"{path.origin.name} names {what} '{path}', and importing it runs code ({files[-1]}) that you have not "
            f"named in a command before; {path.origin.way_out}"
        )


def remember_named(paths: Iterable[str]) -> None:
    """Add import paths that this user has named to the list, with the files that they stand for now.

    Those that are still marked are not added: a record or a file named them, and the user trusted it for once.
    """
    own = [path for path in paths if not isinstance(path, RecordedPath)]
    keys = [(path, *files) for path in own if (files := locate(path.partition(":")[0])) is not None]
    _named_here.update(keys)
    listed = _read_list() if keys else set()
    if new := [key for key in dict.fromkeys(keys) if key not in listed]:
        try:
            _append_to_list(new)
        except OSError as error:
            _logger.warning("the list of named imports %s cannot be written: %s", list_path(), error.strerror or error)


def note_written(content: bytes) -> None:
    """Note that this process has written a pickle, and may read it again."""
    _written_here.add(hashlib.sha256(content).digest())


def was_written_here(content: bytes) -> bool:
    """Return whether this process has written exactly this pickle."""
    return hashlib.sha256(content).digest() in _written_here


def list_path() -> Path:
    """Return where the list is kept: $TENFOLD_NAMED_IMPORTS, else the user's data folder."""
    from platformdirs import user_data_path

    return Path(os.environ.get("TENFOLD_NAMED_IMPORTS") or user_data_path("tenfold") / "named_imports.jsonl")


def locate(module: str) -> tuple[str, ...] | None:
    """Return the files that importing a module runs, those of its packages first; None if there is no such module.

    Nothing is imported. Links are not followed: a folder of somebody else may link to a trusted file.
    """
    files: list[str] = []
    name, folders, origin = "", None, None
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        if name in sys.modules:
            loaded = sys.modules[name]
            spec = getattr(loaded, "__spec__", None)
            origin = getattr(loaded, "__file__", None) or getattr(spec, "origin", None) or f"<{name}>"
            folders = getattr(loaded, "__path__", None)
        else:
            spec = _find_spec(name, folders)
            if spec is None:
                return None
            origin, folders = spec.origin, spec.submodule_search_locations
        if origin is not None:  # else it is a namespace, which has no code
            files.append(str(Path(origin).absolute()) if os.sep in origin else origin)
    return tuple(files) if origin is not None else None


def is_in_current_folder(module: str) -> bool:
    """Return whether the current folder is where a module would be imported from, or the package that it is in."""
    top, folders = module.partition(".")[0], _current_folder()
    if importlib.machinery.PathFinder.find_spec(top, folders) is None:
        return False
    files = locate(top)  # it may have been imported from elsewhere
    places = [place for folder in folders for place in (Path(folder), Path(folder, top))]
    return files is None or any(Path(file).parent in places for file in files)


def _find_spec(name: str, folders: Any) -> importlib.machinery.ModuleSpec | None:
    """Return where a module would be imported from; a module of no package also from the current folder."""
    if "." in name and folders is None:
        return None
    for finder in sys.meta_path:
        is_path_finder = finder is importlib.machinery.PathFinder
        places = list(folders) if folders is not None else [*_current_folder(), *sys.path] if is_path_finder else None
        with suppress(ImportError, AttributeError, ValueError, OSError):
            if (spec := finder.find_spec(name, places)) is not None:
                return spec
    return None


def _current_folder() -> list[str]:
    with suppress(OSError):  # it may have been removed
        return [str(Path.cwd())]
    return []


def _is_torchs(module: str, attribute: str, files: tuple[str, ...]) -> bool:
    """Return whether an import path names a layer, loss, optimizer or schedule of torch, which only compute.

    Other functions of these packages may change all networks of the process, such as by a hook.
    """
    if not any(module == package or module.startswith(f"{package}.") for package in HARMLESS):
        return False
    if "." in attribute or not _are_installed(files):
        return False
    try:
        member = getattr(importlib.import_module(module), attribute, None)
    except ImportError:
        return False
    home = getattr(member, "__module__", None)
    if not isinstance(home, str):
        return False
    if isinstance(member, type):
        import torch

        kinds = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
        return issubclass(member, kinds) and any(home.startswith(f"{package}.") for package in HARMLESS)
    return module == home == FUNCTIONS


def _are_installed(files: tuple[str, ...]) -> bool:
    """Return whether any of the files belongs to Python or to an installed package, or is no file at all."""
    paths = sysconfig.get_paths()
    folders = tuple(f"{paths[name]}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    marks = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
    return any(
        not file.startswith(os.sep) or file.startswith(folders) or any(mark in file for mark in marks) for file in files
    )


def _read_list() -> set[tuple[str, ...]]:
    """Return the content of the list; nothing where somebody else could have written it."""
    try:
        descriptor = os.open(list_path(), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return set()
    with os.fdopen(descriptor, "rb") as file:
        if not _is_private(descriptor):
            _logger.warning("the list of named imports %s is ignored: others may have written it", list_path())
            return set()
        content = file.read(LARGEST_LIST)
    entries = set()
    for line in content.splitlines():
        with suppress(ValueError, TypeError):  # a line that was cut off
            entry = json.loads(line)
            if isinstance(entry, list) and all(isinstance(item, str) for item in entry):
                entries.add(tuple(entry))
    return entries


def _append_to_list(keys: list[tuple[str, ...]]) -> None:
    """Append lines in one write, which processes that write at once do not mix."""
    path = list_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        if _is_private(descriptor):
            os.write(descriptor, "".join(f"\n{json.dumps(key)}\n" for key in keys).encode())
    finally:
        os.close(descriptor)


def _is_private(descriptor: int) -> bool:
    """Return whether an open file is a regular one that only this user can write to."""
    status = os.fstat(descriptor)
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def resolve(path: str, what: str, error: type[TenfoldError] = ExperimentError) -> Any:
    """Return what "package.module:name" names, looking in the current folder too.

    `what` is its name in errors ("data", "model"). Whatever the module itself raises keeps its traceback. A path
    that was read from a record or a file is refused unless it is trusted (see `common/imports.py`).
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
