"""What a page can do to a run: stop, resume, rename, tag, annotate and remove it."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tenfold.common.files import open_regular, open_to_update
from tenfold.common.imports import tenfold_command
from tenfold.errors import StoreError
from tenfold.runs import Store
from tenfold.runs.storage.claim import LOCK
from tenfold.runs.storage.damage import remove_run, rename_run, to_remove
from tenfold.runs.storage.tables import checked_tags

RESUME_SECONDS = 3.0
"""How long a resumed run is watched for an error at its start."""
LONGEST_NOTE = 10_000


class Actions:
    """Acts on the runs of one store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._started: list[subprocess.Popen[str]] = []
        self.known: dict[str, Callable[[int, dict[str, Any]], str]] = {
            "stop": self.stop,
            "resume": self.resume,
            "rename": self.rename,
            "tag": self.tag,
            "note": self.note,
            "remove": self.remove,
        }

    def stop(self, number: int, _given: dict[str, Any]) -> str:
        """Interrupt a run as Ctrl-C does: it ends after saving what it has, and can be resumed."""
        record = self.store.find(number)
        if record["status"] != "running":
            raise StoreError(f"run {number} is not running; it is {record['status']}")
        if record["host"] != socket.gethostname():
            raise StoreError(f"run {number} is running on {record['host']}; stop it there")
        lock = self.store.path(number, record["title"]) / LOCK
        if not _holds(record["pid"], lock):
            raise StoreError(f"the process of run {number} is not known for certain; stop it where it was started")
        os.kill(record["pid"], signal.SIGINT)
        return "stopping; it can be resumed"

    def resume(self, number: int, _given: dict[str, Any]) -> str:
        """Resume a run in a separate process, which outlives this server."""
        record = self.store.find(number)
        if record["status"] not in ("interrupted", "failed"):
            raise StoreError(f"run {number} is {record['status']}; there is nothing to resume")
        if record["status"] == "failed" and record["result"].get("diverged"):
            raise StoreError(f"the loss of run {number} diverged, and would again; train with other settings")
        command = tenfold_command("resume", str(number), "--runs", str(self.store.folder))
        log = self.store.path(number, record["title"]) / "resume.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            log.unlink(missing_ok=True)
            output = open_to_update(log)
        except OSError as error:
            raise StoreError(f"{log} cannot be written: {error.strerror}") from None
        with output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True, start_new_session=True
            )
        self._started = [item for item in self._started if item.poll() is None] + [process]
        until = time.monotonic() + RESUME_SECONDS
        while process.poll() is None and time.monotonic() < until:
            if self.store.find(number)["status"] == "running":
                return "resumed"
            time.sleep(0.1)
        if process.poll():
            raise StoreError(_last_line(log) or f"run {number} could not be resumed")
        return "resuming"

    def rename(self, number: int, given: dict[str, Any]) -> str:
        """Give a run another title."""
        rename_run(self.store, number, _text(given, "title"))
        return f"renamed to {_text(given, 'title')}"

    def tag(self, number: int, given: dict[str, Any]) -> str:
        """Give a run these tags and no others."""
        wanted = set(checked_tags(_text(given, "tags").replace(",", " ").split()))
        had = set(self.store.find(number)["tags"])
        self.store.untag(number, *sorted(had - wanted))
        self.store.tag(number, *sorted(wanted - had))
        return f"tagged {' '.join(sorted(wanted))}" if wanted else "has no tags now"

    def note(self, number: int, given: dict[str, Any]) -> str:
        """Replace the note of a run."""
        text = _text(given, "note").strip()
        if len(text) > LONGEST_NOTE:
            raise StoreError(f"a note has at most {LONGEST_NOTE:,} letters, not {len(text):,}")
        self.store.find(number)
        self.store.set_note(number, text)
        return "note saved" if text else "note removed"

    def remove(self, number: int, given: dict[str, Any]) -> str:
        """Remove a run and its folds; their folders go to the trash."""
        if given.get("confirmed") is not True:
            raise StoreError("removing a run has to be confirmed")
        places = [remove_run(self.store, item) for item in to_remove(self.store, self.store.find(number))]
        return f"removed; its folder is in {places[-1].parent.name}/{places[-1].name}"


def _holds(pid: int, lock: Path) -> bool:
    """Return whether a process has the lock of a run open: its process id may belong to another process by now."""
    import psutil

    try:
        return any(Path(open_file.path) == lock.resolve() for open_file in psutil.Process(pid).open_files())
    except psutil.Error:
        return False


def _text(given: dict[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str):
        raise StoreError(f"the request has no text '{name}'")
    return value


def _last_line(log: Path) -> str:
    with open_regular(log) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST_NOTE))
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("error: ") if lines else ""
