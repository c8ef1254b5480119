"""Bundles: a run as bytes, to send it from the store of one machine to the store of another.

A bundle is a zip archive without compression: `run.json` with the record, `events.jsonl` with the events, and the
files of the run in `files/`. It may come from another machine, so everything in it is checked before it is added to a
store: the names of its members, their checksums, the fields of the record, and that tensors and arrays can be read
without running code. Experiments and pickled models are not sent back, because the submitting machine has them.
"""

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from tenfold.errors import StoreError
from tenfold.runs import checkpoint, recorder, stored_predictions
from tenfold.runs.events import Event, as_row, from_row

if TYPE_CHECKING:
    from tenfold.runs.store import Store

FORMAT = 1
RECORD, EVENTS, FOLDER = "run.json", "events.jsonl", "files/"
WEIGHTS, OUTPUTS = "model.pt", "test_outputs.pt"
FILES = (WEIGHTS, OUTPUTS, stored_predictions.FILE, recorder.CONSOLE_FILE)
"""The files of a run that a bundle contains; checkpoints and pickles are not included."""


class BundledRecord(BaseModel):
    """The description of a run in its bundle."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: Literal[1]
    kind: str
    status: Literal["finished", "failed", "interrupted"]
    created: float
    ended: float | None
    error: str
    host: str
    metadata: dict[str, Any]
    result: dict[str, Any]


@dataclass(frozen=True)
class Bundle:
    """A run from another store, checked except for the content of its files."""

    record: BundledRecord
    events: list[Event]
    files: Mapping[str, bytes]

    def write_files(self, folder: Path) -> None:
        """Write the files to a folder; StoreError if a file's content does not match its name."""
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        if WEIGHTS in self.files:
            checkpoint.load_weights(folder / WEIGHTS)
        if OUTPUTS in self.files:
            checkpoint.load_tensors(folder / OUTPUTS)
        for part in ("validation", "test"):
            stored_predictions.load(folder / stored_predictions.FILE, part)


@dataclass(frozen=True)
class EndedRun:
    """A run that has ended in this process and is not recorded yet."""

    record: BundledRecord
    events: list[Event]
    weights: dict[str, Any] | None
    predictions: Mapping[str, stored_predictions.Predictions]

    def write_files(self, folder: Path) -> None:
        if self.weights is not None:
            checkpoint.save_tensors(self.weights, folder / WEIGHTS)
        stored_predictions.save(self.predictions, folder / stored_predictions.FILE)


def pack(store: "Store", run: int) -> bytes:
    """Return an ended run as a bundle."""
    record, folder = store.find(run), store.folder_of(run)
    names = ("kind", "status", "created", "ended", "error", "host", "metadata", "result")
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr(RECORD, json.dumps({"format": FORMAT} | {name: record[name] for name in names}))
        archive.writestr(EVENTS, "".join(f"{json.dumps(as_row(event))}\n" for event in store.events(run)))
        for name in FILES:
            if (folder / name).is_file():
                archive.write(folder / name, FOLDER + name)
    return written.getvalue()


def unpack(content: bytes) -> Bundle:
    """Read a bundle; raise StoreError for anything that `pack` would not write."""
    try:
        members = _members(content)
        record = BundledRecord.model_validate_json(members.pop(RECORD))
        events = [from_row(json.loads(line)) for line in members.pop(EVENTS).splitlines()]
        files = {name.removeprefix(FOLDER): held for name, held in members.items()}
        if record.status == "finished" and WEIGHTS not in files:
            raise ValueError(f"{WEIGHTS} is missing")
    except (zipfile.BadZipFile, ValidationError, ValueError, KeyError, EOFError, RecursionError) as error:
        raise StoreError(f"the files of a run from a job are damaged: {str(error).splitlines()[0]}") from None
    return Bundle(record, events, files)


def _members(content: bytes) -> dict[str, bytes]:
    """Return the content of an archive's members by their names."""
    allowed = {RECORD, EVENTS, *(FOLDER + name for name in FILES)}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        names = [member.filename for member in members]
        if len(set(names)) < len(names) or not allowed.issuperset(names):
            raise ValueError(f"it holds {', '.join(sorted(set(names) - allowed)) or 'a file twice'}")
        if any(member.compress_type != zipfile.ZIP_STORED or member.file_size > len(content) for member in members):
            raise ValueError("it is compressed")
        return {name: archive.read(name) for name in names}  # `read` verifies the checksums
