"""Count the files of the package of which a function runs in a small `tenfold.train(workers=4)`.

    python tests/support/files_entered.py           # in the main process, until a worker runs, and in all processes
    python tests/support/files_entered.py --list    # also their names, after b (main, before a worker runs), m or w

docs/architecture.md states the numbers. What runs while a module is imported does not count.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import tenfold

PACKAGE = Path(tenfold.__file__).parent
PROGRAM = """
import os
import tenfold

if __name__ == "__main__":
    open("counting", "w").close()
    tenfold.train(model="mlp", data="digits", epochs=1, workers=4, oversubscribe=True)
    open("main", "w").write(str(os.getpid()))
"""
PROFILER = """
import os, sys, threading

seen = set()

def is_importing(frame):
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_back and "importlib" in frame.f_back.f_code.co_filename:
            return True
        frame = frame.f_back
    return False

def profile(frame, event, arg):
    code = frame.f_code
    if event != "call" or code in seen or not code.co_filename.startswith({package!r}):
        return
    if code.co_name == "<module>" or not code.co_flags & 1 or is_importing(frame):  # 1: not the body of a class
        return
    seen.add(code)
    if os.path.exists({folder!r} + "/counting"):
        with open({folder!r} + "/entered", "a") as file:
            file.write(f"{{os.getpid()}} {{code.co_filename}}\\n")

def start():
    sys.setprofile(profile)
    threading.setprofile(profile)

start()
os.register_at_fork(after_in_child=start)
"""


def files_entered() -> tuple[set[str], set[str], set[str]]:
    """Return the files that the main process enters, those of them before a worker runs, and those of the others."""
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        (at / "program.py").write_text(PROGRAM)
        (at / "sitecustomize.py").write_text(PROFILER.format(package=f"{PACKAGE}{os.sep}", folder=folder))
        paths = os.pathsep.join([folder, str(PACKAGE.parent)])
        subprocess.run([sys.executable, "program.py"], cwd=at, env=os.environ | {"PYTHONPATH": paths}, check=True)
        main, own, before, others = (at / "main").read_text(), set[str](), set[str](), set[str]()
        for line in (at / "entered").read_text().splitlines():
            process, _, file = line.partition(" ")
            name = Path(file).relative_to(PACKAGE).as_posix()
            (own if process == main else others).add(name)
            if process == main and not others:
                before.add(name)
    return own, before, others


if __name__ == "__main__":
    own, before, others = files_entered()
    if "--list" in sys.argv:
        for name in sorted(own | others):
            first = "b" if name in before else "m" if name in own else " "
            print(first, "w" if name in others else " ", name)
    print(
        f"{len(own)} files in the main process, {len(before)} of them before a worker runs, "
        f"{len(own | others)} in all processes"
    )
