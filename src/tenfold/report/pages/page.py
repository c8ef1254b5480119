"""What all pages share: they are filled from a template, carry their downloads inside, and are one file each."""

import base64
import time
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenfold.common.files import check_output, write_atomically
from tenfold.errors import StoreError
from tenfold.report.formatting import date_time
from tenfold.report.pages.scripts import DRAWING, STILL, bundled_script, bundled_style

if TYPE_CHECKING:
    from jinja2 import Environment

RUN_PARTS = ("facts", "above", "headline", "folds", "prediction", "cores", "epochs", "events")
"""The blocks of a run's page that are rendered again while it is running."""
COMPARISON_PARTS = ("above", "headline", "settings")
"""The same of the page of several runs."""
COMPARISON_CHARTS = ("charts",)
"""The blocks of that page which are rendered again as runs end."""


def render_template(template: str, content: dict[str, Any]) -> str:
    """Return the template filled with this content as HTML."""
    inside = {} if content.get("board") else _inside(content)
    return _environment().get_template(template).render(_common() | inside | content)


def render_parts(template: str, content: dict[str, Any], names: Collection[str]) -> dict[str, str]:
    """Return some blocks of a page as HTML, by name."""
    pages, values = _environment(), _common() | content
    found: dict[str, str] = {}
    for one in (pages.get_template("page.html"), pages.get_template(template)):
        context = one.new_context(values)
        found |= {name: "".join(render(context)) for name, render in one.blocks.items() if name in names}
    return found


def _inside(content: dict[str, Any]) -> dict[str, str]:
    """Return the script and the styles that a page carries inside."""
    if not content.get("figures"):
        return {"script": bundled_script(STILL), "style": ""}
    return {"script": bundled_script(DRAWING), "style": bundled_style()}


def _common() -> dict[str, Any]:
    nothing: dict[str, Any] = {
        "eyebrow": "",
        "subject": "",
        "status": "",
        "headline": [],
        "doubts": [],
        "downloads": [],
        "figures": None,
        "board": None,
        "several": False,
        "versus": None,
    }
    return {"written": date_time(time.time()), **nothing}


def page_style() -> str:
    """Return the styles of all pages."""
    return _environment().get_template("report.css").render()


@cache
def _environment() -> "Environment":
    """Return what reads the templates; all of them know the macros of macros.html."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("tenfold.report.pages", "templates")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    macros = vars(made.get_template("macros.html").module)
    made.globals |= {name: macro for name, macro in macros.items() if not name.startswith("_")}
    return made


def save_page(page: str, path: str | Path) -> Path:
    """Write a page to a file, and return its path."""
    path = Path(path)
    check_output(path, "a report")
    try:
        write_atomically(path, page.encode(), named_by_user=True)
    except OSError as error:
        raise StoreError(f"the report cannot be written to {path}: {error.strerror or error}") from None
    return path


def download_link(name: str, label: str, content: str, about: str = "") -> dict[str, str]:
    """Return a link to a file that the page contains."""
    kind = {"csv": "text/csv"}.get(name.rpartition(".")[2], "application/json")
    encoded = base64.b64encode(content.encode()).decode()
    address = f"data:{kind};charset=utf-8;base64,{encoded}"
    return {"name": name, "label": label, "about": about or f"All numbers as {label}", "address": address}
