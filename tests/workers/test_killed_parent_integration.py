"""A script that trains needs no guard; killed, it leaves no processes, no files and no tracebacks behind."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from waiting import wait_until

import tenfold

SCRIPT = """
import threading
import torch, tenfold
from torch import nn
from beside import scale

print("once", flush=True)
SHIFT = 1.0

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(scale(x) + SHIFT)

def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets) * SHIFT

alone = tenfold.train(model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), data="digits", epochs=2)
print(alone.status, type(alone.model).__name__, alone.accuracy > 0.5, flush=True)
x = torch.randn(40, 4)
run = tenfold.train(model=Network, data=(x, (x.sum(1) > 0).long()), loss=loss, metrics={"mine": loss},
                    workers=2, threads=1, oversubscribe=True, epochs=5, batch_size=8)
print(run.status, run.result["workers"], "mine" in run.metrics, flush=True)
grid = tenfold.compare(model="mlp", data="digits", limit=200, epochs=1, threads=1, lr=[0.1, 0.01], on="processes",
                       progress=False)
print(len(grid.runs), flush=True)
endless = dict(model="mlp", data="digits", hidden=[8], epochs=10**6, workers=3, oversubscribe=True, runs="endless")
threading.Thread(target=tenfold.train, kwargs=endless | dict(strategy="easgd")).start()
tenfold.train(**endless, strategy="allreduce")
"""
PRINTED = ["once", "finished Sequential True", "finished 2 True", "2"]

pytestmark = pytest.mark.timeout(90)


class Script:
    """The script, in a process and in folders of its own; at last it trains with and without rounds at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = Path(tempfile.mkdtemp(dir="/tmp"))  # the path of a socket in it must be short
        (folder / "beside.py").write_text("def scale(x):\n    return x * 2\n")
        (folder / "script.py").write_text(SCRIPT)
        sources = {"TMPDIR": str(self.temporary), "PYTHONPATH": str(Path(tenfold.__file__).parents[1])}
        with (folder / "output").open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "script.py"],
                env=os.environ | sources,
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def output(self) -> list[str]:
        return (self.folder / "output").read_text().splitlines()

    def has_saved_both(self) -> bool:
        assert self.process.poll() is None, self.output()
        return len({path.parent for path in self.folder.glob("endless/*/checkpoint/*")}) == 2


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Script]:
    script = Script(tmp_path_factory.mktemp("script"))
    try:
        wait_until(script.has_saved_both)
        yield script
    finally:
        script.process.kill()
        script.process.wait()


def test_a_script_without_a_guard_is_run_once(script: Script) -> None:
    """What it defines reaches workers and jobs of an executor by value; neither run the script itself."""
    assert script.output() == PRINTED


@pytest.mark.skipif(sys.platform != "linux", reason="memory without a name exists on Linux only")
def test_a_killed_script_leaves_nothing_behind(script: Script) -> None:
    family = psutil.Process(script.process.pid).children(recursive=True)
    assert len(family) >= 7, "a server and six workers"
    script.process.send_signal(signal.SIGKILL)
    script.process.wait()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive
    assert [path.name for path in script.temporary.iterdir()] == []
    assert script.output() == PRINTED
