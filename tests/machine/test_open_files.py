"""The limit of open files, and the workers that it allows."""

import resource

import pytest

from tenfold.errors import MachineError
from tenfold.machine import open_files


@pytest.fixture(autouse=True)
def _thirty_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "_open", lambda: 30)


def limited(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))


def test_too_many_workers_are_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, 64)
    open_files.check(4)
    with pytest.raises(MachineError) as error:
        open_files.check(16)
    assert str(error.value) == (
        "16 workers need about 110 open files, but the limit is 64; raise it with `ulimit -n 1024`, "
        "or use at most 4 workers"
    )


def test_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, resource.RLIM_INFINITY)
    assert open_files.limit() is None
    open_files.check(10**6)
