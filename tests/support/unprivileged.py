"""What runs in processes for which the permissions of files hold, even if root runs the tests."""

import ctypes
import os
from pathlib import Path

DAC_OVERRIDE_AND_READ_SEARCH = 0b110
VERSION_3 = 0x20080522


def obey_permissions() -> None:
    """In this process: give up the right of root to read and write everything."""
    if os.geteuid() != 0:
        return
    system = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(VERSION_3, 0), (ctypes.c_uint32 * 6)()
    system.capget(header, sets)
    for index in (0, 1):  # what is effective, and what is permitted
        sets[index] &= ~DAC_OVERRIDE_AND_READ_SEARCH
    if system.capset(header, sets):
        raise OSError(ctypes.get_errno(), "rights cannot be given up")


def run_verbs(folder: str, verbs: list[list[str]]) -> None:
    """Run commands of the command line; what they printed and how they ended goes to files in the folder."""
    from command_line import tenfold_

    obey_permissions()
    os.chdir(folder)
    for number, arguments in enumerate(verbs):
        result = tenfold_(*arguments)
        Path(folder, f"said-{number}").write_text(f"{result.exit_code}\n{result.output}")


def make_read_only(folder: Path) -> None:
    """Let nobody write to a folder and what is in it."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)


def make_writable(folder: Path) -> None:
    """Undo `make_read_only`, so that the folder can be removed."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
