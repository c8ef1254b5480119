"""Installs a package with entry points, as its metadata in a folder that Python looks in."""

from pathlib import Path

import pytest

from tenfold.registry import Registry, scan


def install(folder: Path, patch: pytest.MonkeyPatch, package: str, points: dict[str, dict[str, str]]) -> None:
    """Install a package with these entry points by group; `patch` removes it again."""
    info = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{n} = {path}\n" for n, path in names.items()) for group, names in points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    patch.syspath_prepend(folder)
    scan.cache_clear()


def forget(*families: Registry[object]) -> None:
    """Look for installed packages again, also in families that have looked before."""
    scan.cache_clear()
    for family in families:
        vars(family).pop("plugins", None)
