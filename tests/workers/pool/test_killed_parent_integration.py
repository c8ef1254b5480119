"""A program that is killed leaves no processes, no files and no tracebacks behind."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from waiting import wait_until

import tenfold

PROGRAM = """
import threading
import tenfold

fields = dict(model="mlp", data="digits", hidden=[8], epochs=10**6, workers=3, oversubscribe=True)
others = threading.Thread(target=tenfold.train, kwargs=fields | dict(strategy="easgd"))
others.start()
tenfold.train(**fields, strategy="allreduce")
"""


@pytest.mark.timeout(90)
@pytest.mark.skipif(sys.platform != "linux", reason="memory without a name exists on Linux only")
def test_a_killed_program_leaves_nothing_behind(tmp_path: Path) -> None:
    """It trains with rounds in one thread and without in another: both kinds of shared memory are in use."""
    temporary = Path(tempfile.mkdtemp(dir="/tmp"))  # the path of a socket in it must be short
    environment = os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": str(Path(tenfold.__file__).parents[1])}
    with (tmp_path / "output").open("w") as output:
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], env=environment, cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT
        )

    def both_have_saved() -> bool:
        assert program.poll() is None, (tmp_path / "output").read_text()
        return len({path.parent for path in tmp_path.glob("runs/*/checkpoint/*")}) == 2

    wait_until(both_have_saved)
    family = psutil.Process(program.pid).children(recursive=True)
    assert len(family) >= 7, "a server and six workers"
    program.send_signal(signal.SIGKILL)
    program.wait()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive
    assert [path.name for path in temporary.iterdir()] == []
    assert (tmp_path / "output").read_text() == ""
