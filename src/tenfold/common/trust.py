"""Which code data may name: import paths in records and files, and the list of those that this user has named.

Importing runs code. An import path that the caller gives is imported. One that comes from a store of runs or from a
file is imported only if this user has named it before, for the same files; that list is kept outside of all stores.
"""

import hashlib
import importlib
import importlib.machinery
import json
import logging
import os
import stat
import sys
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenfold.errors import ExperimentError, TenfoldError

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
    """An import path that was read from a record or a file, which `resolve` imports only where it is trusted."""

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
            f"{path.origin.name} names {what} '{path}', and importing it runs code ({files[-1]}) that none of your own "
            f"commands has named before; {path.origin.way_out}"
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
