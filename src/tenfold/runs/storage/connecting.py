"""How the file of a run store is opened: by the abilities of its file system, and by this user's permissions.

SQLite's write-ahead log needs memory that processes share through a file, and locks; and it works on one machine only.
On a file system that several machines share, or without such memory, a store has a rollback journal instead. Without
locks nothing is written. A store that cannot be written to can still be read: as it is, or, where a log or a journal
was left beside it, from a copy.
"""

import fcntl
import mmap
import os
import shutil
import sqlite3
import tempfile
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from tenfold.common.files import file_system_of, nearest_folder

LOCK_SECONDS = 30.0
"""How long to wait for another process that writes to the store."""
LOCAL = {
    "apfs",
    "bcachefs",
    "btrfs",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "hfs",
    "jfs",
    "overlay",
    "ramfs",
    "tmpfs",
    "xfs",
    "zfs",
}
"""File systems of one machine that have all that is needed; others are tried out."""
SHARED = {"9p", "afs", "beegfs", "ceph", "cifs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2"}
SHARED |= {"fuse.ceph", "fuse.glusterfs", "orangefs", "panfs", "pvfs2", "smb2", "smb3", "smbfs", "virtiofs"}
"""File systems that other machines may write to at the same time."""
Access = Literal["write", "read", "immutable", "copy"]
COPY_ATTEMPTS = 3


@dataclass(frozen=True)
class Abilities:
    """The abilities of a store's file system."""

    name: str
    """Its type, such as ext4; "" where the system does not say."""
    write_ahead: bool = True
    """Whether a write-ahead log works."""
    locks: bool = True


def find_abilities(folder: Path) -> Abilities:
    """Return the abilities of a folder's file system, by its type, or else by trying."""
    name = file_system_of(folder)
    if name in LOCAL:
        return Abilities(name)
    maps, locks = _try_out(nearest_folder(folder))
    return Abilities(name, write_ahead=maps and locks and name not in SHARED, locks=locks)


def _try_out(folder: Path) -> tuple[bool, bool]:
    """Return whether a file of this folder can be mapped, and locked; True where no file can be made to try it."""
    maps = locks = True
    with suppress(OSError), tempfile.TemporaryFile(dir=folder, prefix=".tenfold-") as file:
        file.truncate(mmap.PAGESIZE)
        try:
            mmap.mmap(file.fileno(), mmap.PAGESIZE).close()
        except OSError:
            maps = False
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            locks = False
    return maps, locks


class StoreFile:
    """The file of a store, and how it is opened here."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.abilities = find_abilities(path.parent)
        self.access: Access = "write"
        self.problem = ""
        """Why it cannot be written to."""

    def choose_access(self) -> None:
        """Find out how the file can be opened; it exists."""
        folder = self.path.parent
        if not os.access(self.path, os.W_OK) or not os.access(folder, os.W_OK):
            self.problem = "it is read-only for you"
            self._choose_reading()
        elif not self.abilities.locks:
            self.problem = describe_no_locks(self.abilities.name)
            self._choose_reading()
        elif not self.abilities.write_ahead:
            self._leave_write_ahead()

    def _choose_reading(self) -> None:
        """Choose the first way to read the file that works; if none does, its error is raised when it is read."""
        ways: tuple[Access, ...] = ("read", "immutable", "copy") if self.abilities.locks else ("immutable", "copy")
        for way in ways:
            self.access = way
            if way == "immutable" and self._has_log():  # it would be read without the last writes
                continue
            with suppress(sqlite3.OperationalError), closing(self.connect(1.0)) as connection:
                connection.execute("SELECT 1 FROM sqlite_master").fetchone()
                return

    def _leave_write_ahead(self) -> None:
        """Give a store that was made elsewhere a rollback journal; with all of the file locked, no memory is shared."""
        with closing(self.connect(LOCK_SECONDS)) as connection:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
                connection.execute("PRAGMA journal_mode = DELETE")

    def connect(self, lock_seconds: float = LOCK_SECONDS, *, check_same_thread: bool = True) -> sqlite3.Connection:
        if self.access == "immutable" and self._has_log():  # somebody writes to it again
            self._choose_reading()
        if self.access == "copy":
            return self._open_copy(check_same_thread)
        if self.access == "write":
            return sqlite3.connect(self.path, timeout=lock_seconds, check_same_thread=check_same_thread)
        how = "mode=ro" if self.access == "read" else "immutable=1"
        address = f"file:{quote(str(self.path))}?{how}"
        return sqlite3.connect(address, timeout=lock_seconds, check_same_thread=check_same_thread, uri=True)

    def _open_copy(self, check_same_thread: bool) -> sqlite3.Connection:
        """Return a copy in memory that includes the log or journal beside the file."""
        for attempt in range(COPY_ATTEMPTS):
            with tempfile.TemporaryDirectory(prefix="tenfold-") as folder:
                copy = Path(folder) / self.path.name
                for suffix in ("", "-wal", "-journal"):
                    with suppress(FileNotFoundError):
                        shutil.copyfile(self._beside(suffix), f"{copy}{suffix}")
                try:
                    with closing(sqlite3.connect(copy)) as merged:
                        merged.execute("PRAGMA journal_mode = DELETE").fetchone()
                        connection = sqlite3.connect(":memory:", check_same_thread=check_same_thread)
                        merged.backup(connection)
                        return connection
                except sqlite3.DatabaseError:  # it was written to while it was copied
                    if attempt == COPY_ATTEMPTS - 1:
                        raise
        raise AssertionError

    def _has_log(self) -> bool:
        return any(self._beside(suffix).exists() for suffix in ("-wal", "-journal"))

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(f"{self.path.name}{suffix}")


def describe_no_locks(file_system: str) -> str:
    """Return why nothing is written where there are no locks."""
    kind = f" ({file_system})" if file_system else ""
    return f"its file system{kind} has no file locks; choose a folder on another one with --runs (runs=)"
