import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is loaded: tests that share cores must not spin

import pytest
import typer.testing
from forked import programs_server, start_shared_server, use_shared_server
from hypothesis import settings

from tenfold.workers import fork_server

if TYPE_CHECKING:
    from network_hosts import Hosts

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in what a shell starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 * 2**30:
    # Thousands of small trainings force their files to the disk, which takes longer than they do.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

_PROCESS = os.environ.get("PYTEST_XDIST_WORKER", "alone")
if os.environ.get("TENFOLD_TESTS_OF") != _PROCESS:  # else the process that started this one has made the folder
    os.environ["TENFOLD_TESTS_OF"] = _PROCESS
    _TESTS_FOLDER = tempfile.TemporaryDirectory(prefix="tenfold-tests-")
    # Neither read nor change what this user's own runs have named, measured and predicted, and where they are.
    os.environ["TENFOLD_NAMED_IMPORTS"] = str(Path(_TESTS_FOLDER.name) / "named_imports.jsonl")
    os.environ["TENFOLD_PROFILE"] = str(Path(_TESTS_FOLDER.name) / "profile.toml")
    for name in ("TENFOLD_RUNS", "TENFOLD_TRACEBACK"):
        os.environ.pop(name, None)

# Making the parsers of all verbs takes longer than most verbs do.
typer.testing._get_command = cache(typer.testing._get_command)

# A busy machine makes single examples slow, which is no failure.
settings.register_profile("patient", deadline=None, max_examples=50)
settings.load_profile("patient")


def pytest_configure(config: pytest.Config) -> None:
    """Share one server of programs among the processes that share the tests."""
    if hasattr(config, "workerinput"):
        use_shared_server(config.workerinput["programs_server"])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Before such a process starts: tell it the address."""
    node.workerinput["programs_server"] = _shared_server()


@cache
def _shared_server() -> str:
    return start_shared_server()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files that take long first, so that processes which share the tests end at the same time.

    They are in the order of their names, so that those of one folder, which all wait or all compute, are apart.
    """

    def place(item: pytest.Item) -> tuple[bool, str]:
        is_long = "_integration" in item.path.name or item.path.parent.name == "tests"
        return (False, item.path.name) if is_long else (True, "")

    items.sort(key=place)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while modules and tests are loaded, and pass over them later: they stay for good."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _brief_measurements() -> None:
    """Predict from few steps, in all tests that use torch; without it nothing is predicted."""
    if "torch" in sys.modules:
        from brief_measurements import shorten_measurements

        shorten_measurements()


@pytest.fixture(scope="session")
def _warm_server() -> None:
    """Start the server of processes before a test changes the folder, which a relative PYTHONPATH would not survive."""
    fork_server.start_server()


@pytest.fixture(scope="module")
def _workers_with_imports() -> Iterator[None]:
    """Fork workers that have imported scikit-learn and what torch's optimizers need, which takes them two seconds."""
    with programs_server():
        fork_server.start_server()
        yield


@pytest.fixture
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TENFOLD_RUNS", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def hosts() -> "Iterator[Hosts]":
    """Make two hosts that are network namespaces of this machine."""
    from network_hosts import Hosts  # imports torch

    hosts = Hosts(2)
    try:
        problem = hosts.make()
        if problem:
            pytest.skip(problem)
        yield hosts
    finally:
        hosts.remove()
