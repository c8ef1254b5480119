"""A program that is killed leaves no processes, no files and no tracebacks behind."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

import tenfold

PROGRAM = """
import tenfold
tenfold.train(model="mlp", data="digits", hidden=[8], epochs=10**6, workers=3, oversubscribe=True, strategy="STRATEGY")
"""


@pytest.mark.timeout(90)
@pytest.mark.skipif(sys.platform != "linux", reason="memory without a name exists on Linux only")
@pytest.mark.parametrize("strategy", ["allreduce", "easgd"])
def test_a_killed_program_leaves_nothing_behind(strategy: str, tmp_path: Path) -> None:
    temporary = Path(tempfile.mkdtemp(dir="/tmp"))  # the path of a socket in it must be short
    environment = os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": str(Path(tenfold.__file__).parents[1])}
    command = [sys.executable, "-c", PROGRAM.replace("STRATEGY", strategy)]
    with (tmp_path / "output").open("w") as output:
        program = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT)
    while not list(tmp_path.glob("runs/*/checkpoint/*")):
        assert program.poll() is None, (tmp_path / "output").read_text()
        time.sleep(0.1)
    family = psutil.Process(program.pid).children(recursive=True)
    assert len(family) >= 4
    program.send_signal(signal.SIGKILL)
    program.wait()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive
    assert not list(temporary.iterdir())
    assert (tmp_path / "output").read_text() == ""
