"""Families of things that have names: sources, models, optimizers, strategies, ..."""

import difflib
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from tenfold.errors import ExperimentError, TenfoldError

T = TypeVar("T")


def suggest(name: str, known: Iterable[str]) -> str:
    """Return "did you mean 'x'? known: x, y, z", or only the list when nothing is near."""
    known = list(known)
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    listed = f"known: {', '.join(known)}"
    return f"did you mean '{near[0]}'? {listed}" if near else listed


class Registry(Generic[T]):
    """Members of one family by name; asking for an unknown one says which there are."""

    def __init__(self, kind: str, members: dict[str, T], error: type[TenfoldError] = ExperimentError) -> None:
        self.kind = kind
        self._members = members
        self._error = error

    def __getitem__(self, name: str) -> T:
        try:
            return self._members[name]
        except (KeyError, TypeError):  # TypeError: from a file, a list or a table in the place of a name
            raise self._error(f"unknown {self.kind} '{name}'; {suggest(str(name), self)}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)
