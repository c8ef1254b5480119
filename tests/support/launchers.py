"""Launchers that tests of several rooms start ranks with."""

import subprocess

import pytest

from tenfold.launchers import find_mpirun


def mpirun() -> list[str]:
    """Return the command that starts ranks of the MPI that mpi4py uses, or skip the test."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    program = find_mpirun()
    if program is None:
        pytest.skip("there is no mpirun on this machine")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    return [program, "--allow-run-as-root", "--oversubscribe"] if "Open MPI" in version else [program]
