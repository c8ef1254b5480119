"""Sentences for what the parser of the command line refuses."""

from typing import Any

import typer

UsageError: Any = typer.BadParameter.__base__
"""Typer exports only this one of its usage errors, whose base class they share."""
ELSEWHERE = {
    ("train", "--folds"): "`tenfold crossval --folds 5` trains and validates on folds",
    ("simulate", "--folds"): "`tenfold crossval --folds 5` trains and validates on folds",
    ("resume", "--set"): "a run keeps its settings; `tenfold train` starts another from its experiment.toml",
    ("runs", "--workers"): "`tenfold compare --workers 1,2,4` compares runs",
}
"""Options that belong to another command."""


def usage_sentence(error: Any, command: str | None = None) -> str:
    """Return what is wrong with a command line; "" for the error that shows the help when nothing was given.

    `command` is the one that was being read, for errors that do not say.
    """
    message = error.format_message().strip().rstrip(".")
    if not message or "\n" in message:
        return ""
    names = _names(error.ctx) or ([command] if command else [])
    option = str(getattr(error, "option_name", ""))
    if names and (names[-1], option) in ELSEWHERE:
        return f"{names[-1]} has no {option}; {ELSEWHERE[names[-1], option]}"
    if option and (field := _field(option, error.ctx)):
        return f"no such option: {option}; {field} is a field of experiments: --set {field}=VALUE"
    param = getattr(error, "param", None)
    if param is not None and not message.startswith("Missing"):
        opts = [one for one in param.opts if one.startswith("-")]
        return f"{opts[0] if opts else param.name}: {_plain(error.message)}"
    near = getattr(error, "possibilities", None)
    if near:
        return f"no such option: {option}; did you mean {' or '.join(sorted(near))}?"
    sentence = f"{message[0].lower()}{message[1:]}".replace(". Did you", "; did you")
    return sentence if sentence.endswith("?") else f"{sentence}; see `{' '.join(['tenfold', *names, '--help'])}`"


def _field(option: str, context: Any) -> str:
    """Return the field that an option looks like, where the command has `--set`; else ""."""
    if context is None or not any("--set" in param.opts for param in context.command.params):
        return ""
    from tenfold.experiment import FIELDS

    name = option.lstrip("-").replace("-", "_")
    return name if name in FIELDS else ""


def _plain(message: str) -> str:
    """Return what is wrong with a value, without the words of the library that read it."""
    message = message.removeprefix("Value error, ").removeprefix("Input ").partition(", unable to parse")[0].rstrip(".")
    for theirs, ours in {"a valid integer": "a whole number", "a valid number": "a number"}.items():
        message = message.replace(theirs, ours)
    return message


def _names(context: Any) -> list[str]:
    """Return the command that was being read, with the one it is part of, such as ["data", "get"]."""
    names: list[str] = []
    while context is not None and context.parent is not None:
        names.insert(0, str(context.info_name))
        context = context.parent
    return names
