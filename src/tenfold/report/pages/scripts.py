"""The scripts and styles of pages: a server sends them one by one, a report carries them inside as one script."""

import re
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath

STATIC = "static"
LIBRARY = "uplot.min.js"
"""uPlot 1.6.32 by Leon Sorokin, MIT licence, https://github.com/leeoniya/uPlot."""
DRAWING, STILL = "page.js", "still.js"
"""The scripts of pages with and without interactive plots."""
IMPORT = re.compile(r'^import (?:\{[^}]*\} from )?"\./(?P<name>[\w.-]+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let)\b)", re.MULTILINE)
TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}


def static_files(package: str) -> dict[str, tuple[str, bytes]]:
    """Return the scripts and styles of a package that a server sends, by name, each with its type."""
    return {
        one.name: (TYPES[PurePosixPath(one.name).suffix], one.read_bytes())
        for one in (files(package) / STATIC).iterdir()
        if PurePosixPath(one.name).suffix in TYPES
    }


@cache
def bundled_script(entry: str) -> str:
    """Return a module and all modules that it imports as one script, in which names are shared."""
    ordered: list[str] = []

    def visit(name: str) -> None:
        if name in ordered:
            return
        for found in IMPORT.finditer(_text(name)):
            visit(found["name"])
        ordered.append(name)

    visit(entry)
    modules = (EXPORT.sub("", IMPORT.sub("", _text(name))) for name in ordered)
    library = [_text(LIBRARY)] if entry == DRAWING else []
    return "\n".join([*library, *modules]).replace("</script", "<\\/script")


@cache
def bundled_style() -> str:
    """Return the styles of plots."""
    return _text("uplot.min.css") + "\n" + _text("plots.css")


def _text(name: str) -> str:
    return (files("tenfold.report.pages") / STATIC / name).read_text(encoding="utf-8")
