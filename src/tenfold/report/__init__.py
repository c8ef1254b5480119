"""What is shown of runs, predictions and plans: tables, plots, pages and the live display.

`tenfold.report(runs, path)` writes an HTML report. Lines that explain a table are made in one of two places. Tables of
settings, which have several forms, return them as `notes` (`results/result_table.py`); tables that are only printed
have them as the caption (`tables/`).
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """A package that can be called: the public function `tenfold.report` has the same name as this one."""

    def __call__(self, runs: Any, path: str | Path = "report.html") -> Path:
        """Write an HTML report on one run or several; see `tenfold.report.pages.run_pages.report`."""
        from tenfold.report.pages.run_pages import report

        return report(runs, path)


sys.modules[__name__].__class__ = _CallablePackage
