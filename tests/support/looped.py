"""Tables of cases that are checked in one test: a test of its own takes longer than most of them do."""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

Test = Callable[..., None]


def looped(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[[Test], Test]:
    """Call a test with each case, as `pytest.mark.parametrize` would, but as one test, whose failure names the cases.

    The cases share the fixtures of the test.
    """
    keys = [names] if isinstance(names, str) else [*names]
    rows = [dict(zip(keys, (case,) if isinstance(names, str) else case, strict=True)) for case in cases]
    assert rows, f"there are no cases of {names}"

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def check_all(*fixtures: Any, **named_fixtures: Any) -> None:
            failed: list[BaseException] = []
            for row in rows:
                try:
                    test(*fixtures, **named_fixtures, **row)
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note("with " + ", ".join(f"{key} = {value!r:.200}" for key, value in row.items()))
                    failed.append(error)
            if len(failed) > 1:
                others = "\n".join(f"{error!r:.200} {error.__notes__[-1]}" for error in failed[1:])
                failed[0].add_note(f"{len(failed)} of {len(rows)} cases failed; the others:\n{others}")
            if failed:
                raise failed[0]

        signature = inspect.signature(test)
        fixtures = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        check_all.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return check_all

    return decorate
