"""What the command lines of benchmarks have in common: the module's docstring as help, and `--json FILE`."""

import argparse
import json
from pathlib import Path
from typing import Any


def make_parser(docstring: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to FILE")
    return parser


def write_json(path: Path | None, figures: Any) -> None:
    """Write what was measured, if a file was asked for."""
    if path is not None:
        path.write_text(json.dumps(figures, indent=2) + "\n")
