"""The user's files that an experiment names: data files, and modules of models, losses and so on."""

import hashlib
import importlib.util
import sys
from contextlib import suppress
from pathlib import Path

from tenfold.common.catalog import SOURCES
from tenfold.common.files import names_data_file
from tenfold.experiment import Experiment
from tenfold.experiment.values import PythonObject


def own_files(experiment: Experiment) -> dict[str, str]:
    """Return a digest of each file, folder or module that an experiment names, by its name there.

    It changes when the file does, or the names, sizes or times of the files in a folder. What a module imports is not
    looked at.
    """
    named = [value for values in experiment.named_values.values() for value in values]
    paths = [value.import_path if isinstance(value, PythonObject) else value for value in named]
    found: dict[str, str] = {}
    for name in (path for path in paths if isinstance(path, str)):
        if ":" in name:
            module = name.partition(":")[0]
            found[module] = _digest(_source(module))
        elif name == experiment.data.name and name not in SOURCES and names_data_file(name):
            found[name] = _digest(Path(name).expanduser())
    return found


def _source(module: str) -> Path | None:
    """Return the file of a module, which may be in the current folder."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    with suppress(ImportError, ValueError, AttributeError):
        spec = importlib.util.find_spec(module)
        return Path(spec.origin) if spec is not None and spec.origin is not None else None
    return None


def _digest(path: Path | None) -> str:
    """Return a digest of a file's content, or of a folder's list of files; "" for what is not there."""
    if path is None or not path.exists():
        return ""
    if path.is_dir():
        stats = {str(one.relative_to(path)): one.stat() for one in sorted(path.rglob("*"))}
        listed = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()]
        return hashlib.blake2b(repr(listed).encode(), digest_size=8).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()
