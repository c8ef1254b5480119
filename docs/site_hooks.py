"""The pages of the site that are made from the code when it is built: commands, API, examples and gallery.

MkDocs calls the functions named `on_...`; see mkdocs.yml. The gallery shows what docs/make_gallery.py has
written to build/gallery, if it has been run.
"""

import inspect
import json
import re
from pathlib import Path
from typing import Any

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import tenfold
from tenfold.cli import COMMANDS, app

ROOT = Path(__file__).parents[1]
GALLERY = ROOT / "build" / "gallery"
OWN_METHODS = {"recipes": ["tenfold.papers.run"], "report": ["tenfold.reports.pages.run_pages.report"]}
"""What the API page shows of a public name that is a module."""
EDGE = re.compile(r"(\w+)(?:\[\"([^\"]*)\"\])?\s*-->\s*(\w+)(?:\[\"([^\"]*)\"\])?")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from the code."""
    pages = {
        "reference/commands.md": commands_page(),
        "reference/api.md": api_page(),
        "reference/examples.md": examples_page(),
        "gallery/index.md": gallery_page(),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    for path in sorted(GALLERY.glob("*")):
        if path.suffix in (".html", ".png"):
            files.append(File.generated(config, f"gallery/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Lead links to example programs to their page, and draw diagrams as tables: their scripts would be fetched."""
    up = "../" * page.file.src_uri.count("/")
    markdown = re.sub(r"^```python (?:no-run|needs \w+)$", "```python", markdown, flags=re.MULTILINE)
    markdown = re.sub(
        r"\]\((?:\.\./)+examples/(\w+)\.py\)", lambda found: f"]({up}reference/examples.md#{found[1]}py)", markdown
    )
    return re.sub(r"```mermaid\n(.*?)```", lambda found: _edges_table(found[1]), markdown, flags=re.DOTALL)


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Take the helper for search in pages opened as files from the site itself instead of a server."""
    up = "../" * page.file.src_uri.count("/")
    return output.replace("https://unpkg.com/iframe-worker/shim", f"{up}assets/frame-worker.js")


def on_post_template(output_content: str, **_: Any) -> str:
    """Do the same for the page that a server shows where there is none; it has no search in files."""
    return output_content.replace('<script src="https://unpkg.com/iframe-worker/shim"></script>', "")


def commands_page() -> str:
    """Return the page with the help of every command."""
    lines = [
        "# Commands",
        "",
        "Made from the program's own help. `tenfold COMMAND --help` shows the same in a terminal.",
        "",
    ]
    root: Any = typer.main.get_command(app)
    for heading, commands in COMMANDS.items():
        lines += [f"## {heading}", ""]
        for command in commands.split():
            name = command.partition(":")[2].removesuffix("_app")
            lines += _command(root.commands[name], f"tenfold {name}")
    return "\n".join(lines)


def _command(command: Any, path: str) -> list[str]:
    lines = [f"### {path}", "", *_explained(command.help or ""), ""]
    if hasattr(command, "commands"):
        for name, one in command.commands.items():
            lines += _command(one, f"{path} {name}")
        return lines
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [
        parameter for parameter in command.params if parameter.param_type_name == "option" and not parameter.hidden
    ]
    usage = " ".join([path, *map(_argument, arguments), "[OPTIONS]" if options else ""])
    lines += ["```text", usage.strip(), "```", ""]
    if arguments or options:
        lines += ["| argument or option | meaning |", "|---|---|"]
    for argument in arguments:
        lines.append(f"| `{_argument(argument)}` | {_cell(argument.help)} |")
    for option in options:
        names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
        value = f" {_cell(option.metavar)}" if option.metavar else ""
        default = (
            f" Default: `{option.default}`."
            if option.show_default and option.default not in (None, False, "", ())
            else ""
        )
        lines.append(f"| {names}{value} | {_cell(option.help)}{_cell(default)} |")
    return [*lines, ""]


def _argument(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required else f"[{name}]"


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def _explained(text: str) -> list[str]:
    """Return a command's help as Markdown; its examples become a block."""
    told, _, shown = inspect.cleandoc(text).partition("Examples: ")
    lines = [told.strip()]
    examples = re.findall(r"\[cyan\](.*?)\[/\]", shown, re.DOTALL)
    if examples:
        lines += ["", "```sh", *(" ".join(example.split()) for example in examples), "```"]
    return [re.sub(r"\[/?\w*\]", "", line) if line.startswith("[") else line for line in lines]


def api_page() -> str:
    """Return the page from which mkdocstrings makes the API reference."""
    lines = ["# API", "", "Every public name, from its docstring. [Python](../python-api.md) has an overview.", ""]
    for name in sorted(tenfold.__all__, key=str.lower):
        for path in OWN_METHODS.get(name, [f"tenfold.{name}"]):
            lines += [f"::: {path}", ""]
    return "\n".join(lines)


def examples_page() -> str:
    """Return the page with the example programs."""
    lines = ["# Example programs", "", "Each is run by the tests. They are in the folder `examples`.", ""]
    for path in sorted((ROOT / "examples").glob("*.py")):
        lines += [f"## {path.name}", "", "```python", path.read_text().rstrip(), "```", ""]
    return "\n".join(lines)


def gallery_page() -> str:
    """Return the page with pictures of pages, each leading to the page itself."""
    lines = ["# Gallery", "", "Pages as Tenfold writes them, on a small data set.", ""]
    index = GALLERY / "gallery.json"
    if not index.exists():
        return "\n".join(
            [*lines, "`make gallery` makes the pages and pictures; they were not made for this build.", ""]
        )
    for example in json.loads(index.read_text()):
        lines += [f"## {example['title']}", "", example["about"], "", "```sh", example["command"], "```", ""]
        picture, page = (GALLERY / f"{example['name']}.{ending}" for ending in ("png", "html"))
        if picture.exists():
            lines += [f"![{example['title']}]({picture.name})", ""]
        if page.exists():  # the board needs a server
            lines += [f"[Open the page]({page.name})", ""]
    return "\n".join(lines)


def _edges_table(diagram: str) -> str:
    """Return a flowchart as a table: each package, and those it imports from."""
    names: dict[str, str] = {}
    targets: dict[str, list[str]] = {}
    for start, start_name, end, end_name in EDGE.findall(diagram):
        names |= {key: name for key, name in ((start, start_name), (end, end_name)) if name}
        targets.setdefault(start, []).append(end)
    rows = [f"| {names.get(start, start)} | {', '.join(ends)} |" for start, ends in targets.items()]
    return "\n".join(["| package | imports from |", "|---|---|", *rows])
