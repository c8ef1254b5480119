"""What the documentation says is so: its programs run, its commands and experiments are understood, its links lead
somewhere, and the table of fields is that of the code."""

import re
import runpy
import shlex
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import typer.main
from looped import looped

from generate_fields import FIELDS_PAGE, fields_page
from tenfold.cli import app
from tenfold.experiment import Experiment

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
COMMAND = re.compile(r"^(?:\$ )?tenfold (?P<line>(?:\"[^\"\n]*\"|[^\n#>])+)", re.MULTILINE)
NAMED = re.compile(r"`tenfold (?P<line>(?:\"[^`\"]*\"|[^`>])+)`")
MACHINE_PATH = re.compile(r"(?<![\w.:/>*$}~])/(?!usr/share/datasets|dev/shm|proc/)\w+/\w")
PLACEHOLDERS = {"FILE": "lenet.toml", "RUN": "1"}


def blocks(page: Path, kind: str) -> list[str]:
    return [match["text"] for match in BLOCK.finditer(page.read_text()) if match["kind"].strip() == kind]


@cache
def parser() -> Any:
    return typer.main.get_command(app)


def parsed(line: str) -> str:
    """Parse a command line as `tenfold` would, without running it, and return its verb."""
    words = [PLACEHOLDERS.get(word, word) for word in shlex.split(line.replace("...", ""))]
    command = parser()
    verb = words.pop(0)
    if verb.startswith("-"):
        assert verb in ("--help", "--version", "--install-completion", "--show-completion"), line
        return verb
    while verb is not None:
        assert verb in command.commands, (
            f"`tenfold {line}`: there is no {verb}; there are {', '.join(command.commands)}"
        )
        command = command.commands[verb]
        if not hasattr(command, "commands") or not words:
            break
        verb = words.pop(0)
    if not hasattr(command, "commands") and words:  # a verb that is only named needs no arguments
        command.make_context(verb, words)
    return verb


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("_workers_with_imports")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_its_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page are one program; one that must not run is marked `python no-run`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TENFOLD_RUNS", raising=False)
    program: dict[str, Any] = {"__name__": "__main__"}
    for number, block in enumerate(blocks(page, "python")):
        exec(compile(block, f"{page.name}, python block {number}", "exec"), program)
    assert "tenfold" in program
    assert (tmp_path / "runs" / "tenfold.db").exists()


NEEDING = [
    pytest.param(kind.split()[-1], match["text"], id=f"{page.stem}-{kind.split()[-1]}")
    for page in PAGES
    for match in BLOCK.finditer(page.read_text())
    if (kind := match["kind"].strip()).startswith("python needs ")
]
"""Blocks that need a package which is not installed everywhere; each is a program of its own."""


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("_workers_with_imports")
@pytest.mark.parametrize(("package", "text"), NEEDING)
def test_its_python_for_other_packages_runs(
    package: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TENFOLD_RUNS", raising=False)
    exec(compile(text, f"block for {package}", "exec"), {"__name__": "__main__"})


@looped("page", [page for page in PAGES if blocks(page, "toml")])
def test_its_experiments_are_valid(page: Path) -> None:
    for block in blocks(page, "toml"):
        assert Experiment(**tomllib.loads(block)) != Experiment()


@looped("page", PAGES)
def test_its_commands_are_understood(page: Path) -> None:
    text = page.read_text()
    shown = [match for block in blocks(page, "sh") + blocks(page, "console") for match in COMMAND.finditer(block)]
    for match in [*shown, *NAMED.finditer(text)]:
        assert parsed(match["line"].strip())


@looped("page", PAGES)
def test_its_links_lead_somewhere(page: Path) -> None:
    for match in LINK.finditer(page.read_text()):
        target, _, heading = match["target"].partition("#")
        if target.startswith(("http://", "https://")):
            continue
        found = (page.parent / target).resolve() if target else page
        assert found.exists(), f"{page.name} links to {target}, which is not there"
        if heading:
            headings = re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE)
            assert heading in [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]


@looped("page", [*PAGES, *sorted((ROOT / "examples").glob("*.py"))])
def test_it_names_no_path_of_one_machine(page: Path) -> None:
    assert not MACHINE_PATH.findall(page.read_text())


def test_every_verb_is_on_the_page_of_commands() -> None:
    text = (ROOT / "docs" / "commands.md").read_text()
    for verb in parser().commands:
        assert f"| `tenfold {verb}` |" in text


def test_every_page_is_listed() -> None:
    listed = (ROOT / "docs" / "README.md").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        if page.name != "README.md":
            assert f"({page.relative_to(ROOT / 'docs')})" in listed, f"docs/README.md does not list {page.name}"


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    named = set(re.findall(r"^ +- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    made = {page for page in named if page.startswith(("reference/", "gallery/"))}  # by docs/site_hooks.py
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert named - made == pages, "mkdocs.yml lists the pages of the site under nav"


def test_the_paper_cites_what_its_bibliography_has() -> None:
    cited = set(re.findall(r"@(\w+)", (ROOT / "paper.md").read_text()))
    assert cited == set(re.findall(r"^@\w+\{(\w+),", (ROOT / "paper.bib").read_text(), re.MULTILINE))


def luminance(color: str) -> float:
    """Return the relative luminance of a color such as "#00695c", as WCAG defines it."""
    shares = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("scheme", "page"), [("default", "#ffffff"), ("default", "#f5f5f5"), ("slate", "#1e2129")])
def test_links_of_the_site_can_be_read_on_pages_and_code(scheme: str, page: str) -> None:
    css = (ROOT / "docs" / "assets" / "site.css").read_text()
    [rules] = re.findall(rf'scheme="{scheme}"[^{{]*{{([^}}]*)}}', css)
    colors = dict(re.findall(r"--md-(\S+): (#\w{6});", rules))
    behind = {"typeset-a-color": page, "accent-fg-color": page, "primary-fg-color": "#ffffff"}
    for name, other in behind.items():
        low, high = sorted(map(luminance, (colors[name], other)))
        assert (high + 0.05) / (low + 0.05) >= 4.5


def test_the_table_of_fields_is_fresh() -> None:
    assert FIELDS_PAGE.read_text() == fields_page(), "docs/fields.md is stale: run `python tools/generate_fields.py`"


def test_the_sites_page_of_commands_has_every_command(monkeypatch):
    for name in ("mkdocs", "mkdocs.config", "mkdocs.config.defaults", "mkdocs.structure"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    for name in ("mkdocs.structure.files", "mkdocs.structure.pages"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    page = runpy.run_path(str(ROOT / "docs" / "site_hooks.py"))["commands_page"]()
    for command in ("train", "data list", "doctor"):
        assert f"### tenfold {command}\n" in page
