"""Memory that is freed stays with the process."""

import sys
from pathlib import Path
from typing import Any

import pytest
from forked import start_forked

PROGRAM = """
import pathlib
import resource
import torch
from tenfold.machine import liveness as process_state

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        [torch.ones(40 << 20, dtype=torch.uint8) for _ in range(2)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if kept:
    process_state.keep_freed_memory()
faults()
pathlib.Path(result).write_text(str(faults()))
"""


def run(program: str, result: Path, **names: Any) -> int:
    """Run a program in a process of its own, and return the number that it writes."""
    process = start_forked(exec, program, {"result": str(result), **names})
    process.join(60)
    process.kill()
    return int(result.read_text())


@pytest.mark.skipif(sys.platform != "linux", reason="the C library is told so on Linux only")
def test_pages_are_not_asked_for_again_and_again(tmp_path: Path) -> None:
    kept, usual = (run(PROGRAM, tmp_path / str(kept), kept=kept) for kept in (True, False))
    assert kept < 100
    assert usual > 10 * (kept + 1)


GIVEN_BACK = """
import pathlib
import psutil
import torch
from tenfold.machine import liveness as process_state

with process_state.keeping_freed_memory():
    kept = [torch.ones(40 << 20, dtype=torch.uint8) for _ in range(10)]
    kept = None
    inside = psutil.Process().memory_info().rss
pathlib.Path(result).write_text(str(inside - psutil.Process().memory_info().rss))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the C library is told so on Linux only")
def test_the_memory_of_a_block_is_returned_after_it(tmp_path: Path) -> None:
    assert run(GIVEN_BACK, tmp_path / "result") > 300 << 20
