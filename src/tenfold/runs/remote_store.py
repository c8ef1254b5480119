"""A store that another rank writes."""

from pathlib import Path
from typing import NoReturn

from tenfold.errors import StoreError
from tenfold.runs.storage import store_tables
from tenfold.runs.store import Store


class RemoteStore(Store):
    """The store of rank 0, on a rank that does not record; nothing can be read from it here."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.file = self.folder / "tenfold.db"
        self.version = store_tables.VERSION
        self._claims = {}

    def _check_writable(self) -> None:
        self._refuse()

    def connect(self, *_: object, **__: object) -> NoReturn:
        """Raise StoreError."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise StoreError(
            f"rank 0 of the launch records this run, in its folder {self.folder}; read it there, or on rank 0 only"
        )
