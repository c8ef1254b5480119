"""A table of text, in the forms that pages, terminals and Markdown need."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class TextTable:
    """Headings and rows of text."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    totals: int = 0
    """How many rows at the end are totals of those above; a terminal shows them apart, in bold."""

    def to_markdown(self) -> str:
        """Return the table as Markdown, without its title."""
        lines = ["| " + " | ".join(self.columns) + " |", "|" + "---|" * len(self.columns)]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in self.rows]
        return "\n".join(lines) + "\n"

    def to_rich(self, words: int = 1, caption: str | None = None) -> "Table":
        """Return the table for a terminal; the first `words` columns are aligned left, the others right."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, caption=caption, caption_justify="left")
        table.title, table.title_justify, table.title_style = self.title or None, "left", "bold"
        for at, name in enumerate(self.columns):
            table.add_column(Text(name), justify="left" if at < words else "right")
        first_total = len(self.rows) - self.totals
        for at, row in enumerate(self.rows):
            if self.totals and at == first_total:
                table.add_section()
            table.add_row(*(Text(cell, style="bold" if at >= first_total else "") for cell in row))
        return table
