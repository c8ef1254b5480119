"""What all pages share: they are filled from a template, carry their downloads inside, and are one file each."""

import base64
import time
from pathlib import Path
from typing import Any

from tenfold.common.files import write_atomically
from tenfold.errors import StoreError
from tenfold.report.formatting import date_time


def render_template(template: str, content: dict[str, Any]) -> str:
    """Return the template filled with this content as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("tenfold.report.pages", "templates")
    pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    common = {"written": date_time(time.time()), "eyebrow": "", "status": "", "headline": [], "downloads": []}
    return pages.get_template(template).render(common | content)


def save_page(page: str, path: str | Path) -> Path:
    """Write a page to a file, and return its path."""
    path = Path(path)
    try:
        write_atomically(path, page.encode())
    except OSError as error:
        raise StoreError(f"the report cannot be written to {path}: {error.strerror or error}") from None
    return path


def download_link(name: str, label: str, content: str, about: str = "") -> dict[str, str]:
    """Return a link to a file that the page contains."""
    kind = {"csv": "text/csv"}.get(name.rpartition(".")[2], "application/json")
    encoded = base64.b64encode(content.encode()).decode()
    address = f"data:{kind};charset=utf-8;base64,{encoded}"
    return {"name": name, "label": label, "about": about or f"All numbers as {label}", "address": address}
