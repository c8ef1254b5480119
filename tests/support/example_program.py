"""Running a program in a process that was forked for it."""

import os
import runpy
import sys
from pathlib import Path


def run_program(program: Path, folder: Path, environment: dict[str, str]) -> None:
    """Run a program of examples/ as Python would, with its output in a file."""
    _write_to(folder / "output")
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = [str(program)]
    runpy.run_path(str(program), run_name="__main__")


def run_on_rank(folder: str, environment: dict[str, str] | None = None) -> None:
    """Run program.py in the folder as one of several ranks, each with its output in a file."""
    os.environ.update(environment or {})
    os.chdir(folder)
    _write_to(Path(f"output-{os.environ['RANK']}"))
    runpy.run_path("program.py", run_name="__main__")


def _write_to(path: Path) -> None:
    with path.open("wb") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
