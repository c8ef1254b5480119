"""Memory that is freed stays with the process."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource
import sys
import torch
from tenfold.machine import malloc

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        [torch.ones(40 << 20, dtype=torch.uint8) for _ in range(2)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "kept":
    malloc.keep_freed()
faults()
print(faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the C library is told so on Linux only")
def test_pages_are_not_asked_for_again_and_again() -> None:
    found = {
        how: int(
            subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True).stdout
        )
        for how in ("kept", "usual")
    }
    assert found["kept"] < 100
    assert found["usual"] > 10 * (found["kept"] + 1)


GIVEN_BACK = """
import os
import psutil
import torch
from tenfold.machine import malloc

with malloc.keeping_freed():
    kept = [torch.ones(40 << 20, dtype=torch.uint8) for _ in range(10)]
    kept = None
    inside = psutil.Process().memory_info().rss
print(inside - psutil.Process().memory_info().rss)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the C library is told so on Linux only")
def test_the_memory_of_a_block_is_returned_after_it() -> None:
    done = subprocess.run([sys.executable, "-c", GIVEN_BACK], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 300 << 20
