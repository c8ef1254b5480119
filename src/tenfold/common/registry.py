"""Registries: the members of a family (sources, models, optimizers, strategies, ...) by name."""

import difflib
import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from tenfold.errors import ExperimentError, TenfoldError

T = TypeVar("T")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant; None if no name is near."""
    return next(iter(difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.6)), None)


def suggest(name: str, known: Iterable[str], aliases: Mapping[str, str] | None = None) -> str:
    """Return "did you mean 'x'? known: x, y, z", or only the list when nothing is near.

    `aliases` are names that others use, with the known name of each.
    """
    known = list(known)
    near = (aliases or {}).get(name.lower()) or nearest(name, known)
    listed = f"known: {', '.join(known)}"
    return f"did you mean '{near}'? {listed}" if near is not None else listed


class Registry(Generic[T]):
    """The members of one family by name; the error for an unknown name lists the known ones.

    The names in an experiment are checked before, when it is made (`OneOf` in `experiment/values.py`).
    """

    def __init__(self, kind: str, members: Mapping[str, T], error: type[TenfoldError] = ExperimentError) -> None:
        self.kind = kind
        self._members: dict[str, Any] = dict(members)
        self._error = error

    def __getitem__(self, name: str) -> T:
        try:
            return self._members[name]  # type: ignore[no-any-return]
        except (KeyError, TypeError):  # TypeError: from a file, a list or a table in the place of a name
            raise self._error(f"unknown {self.kind} '{name}'; {suggest(str(name), self)}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


class LazyRegistry(Registry[T]):
    """A registry of import paths, "package.module:name"; a member is imported when it is first asked for."""

    def __init__(self, kind: str, paths: Mapping[str, str], error: type[TenfoldError] = ExperimentError) -> None:
        super().__init__(kind, {}, error)
        self._members.update(paths)

    def __getitem__(self, name: str) -> T:
        member: Any = super().__getitem__(name)
        if isinstance(member, str):
            module, _, attribute = member.partition(":")
            member = self._members[name] = getattr(importlib.import_module(module), attribute)
        return member  # type: ignore[no-any-return]
