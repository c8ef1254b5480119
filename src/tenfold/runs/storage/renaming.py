"""Renaming runs: the title in the store, and the folder that carries it."""

from tenfold.errors import StoreError
from tenfold.runs.store import Store

LONGEST = 200


def rename_run(store: Store, run: int, title: str) -> None:
    """Give a run another title, and its folder the name that goes with it; StoreError while it is running."""
    title = " ".join(title.split())
    if not title or len(title) > LONGEST or not title.isprintable():
        raise StoreError(f"'{title[:40]}' is not a title; write 1 to {LONGEST} letters on one line")
    record = store.find(run)
    if record["status"] == "running":
        raise StoreError(f"run {run} is still running; rename it when it has ended")
    before, after = store.path(run, record["title"]), store.path(run, title)
    moved = before != after and before.exists()
    try:
        if moved:
            before.rename(after)
    except OSError as error:
        raise StoreError(f"run {run} cannot be renamed: {before}: {error.strerror or error}") from None
    try:
        store.set_title(run, title)
    except StoreError:
        if moved:
            after.rename(before)
        raise
