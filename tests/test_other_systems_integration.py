"""Systems and builds of torch that lack something: the calls that only Linux has, and torch.distributed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT_LINUX = '''
import os, sys

for call in ("memfd_create", "sched_setaffinity", "sched_getaffinity", "sched_yield", "pidfd_open"):
    if hasattr(os, call):
        delattr(os, call)


def refuse(event, arguments):
    """Hide /proc and /sys from Tenfold, not from the libraries that know other systems by themselves."""
    path = arguments[0] if event == "open" else None
    if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(("/proc", "/sys")):
        frame = sys._getframe(1)
        while frame is not None and "pathlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if frame is not None and f"{os.sep}tenfold{os.sep}" in frame.f_code.co_filename:
            raise FileNotFoundError(path)


sys.addaudithook(refuse)
'''
WITHOUT_DISTRIBUTED = '''
import sys


class Hide:
    """Take its C parts from torch before it looks for them, as in a build without torch.distributed."""

    def find_spec(self, name, path=None, target=None):
        if name == "torch.distributed":
            for part in ("_c10d_init", "_rpc_init", "_faulty_agent_init", "_dist_autograd_init"):
                vars(sys.modules["torch._C"]).pop(part, None)


sys.meta_path.insert(0, Hide())
'''
PROGRAM = """
import torch, tenfold

for name in tenfold.__all__:
    getattr(tenfold, name)
model = torch.nn.Linear(2, 2)
with tenfold.average(model, torch.optim.SGD(model.parameters(), lr=0.1)) as ranks:
    assert ranks.size == 1
run = tenfold.train(model="mlp", data="digits", workers=2, epochs=1, pin="compact", oversubscribe=True)
print(torch.distributed.is_available(), run.status, run.result["workers"])
"""


def output(program: str, start: str, folder: Path) -> str:
    """Run a program in an interpreter that, as all that it starts, first runs `start`."""
    (folder / "sitecustomize.py").write_text(start)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.timeout(120)
def test_two_workers_train_without_the_calls_that_only_linux_has_and_without_torch_distributed(tmp_path: Path) -> None:
    assert output(PROGRAM, WITHOUT_LINUX + WITHOUT_DISTRIBUTED, tmp_path) == "False finished 2"


@pytest.mark.timeout(60)
def test_windows_is_told_what_works(tmp_path: Path) -> None:
    program = "try:\n    import tenfold\nexcept Exception as error:\n    print(error)"
    assert "WSL" in output(program, "import sys; sys.platform = 'win32'", tmp_path)
