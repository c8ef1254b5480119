"""`tenfold doctor`: what this machine has, and what to do about what is missing."""

from dataclasses import asdict

import typer

from tenfold.cli import options
from tenfold.cli.output import print_json, print_rich

MARKS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "problem": "[red]problem[/]"}


def doctor(runs: options.Runs = None, as_json: options.Json = False) -> None:
    """Check the machine (cores, threads, memory, torch, GPUs, MPI, data sets) and suggest fixes.

    Example: [cyan]tenfold doctor[/]
    """
    from rich.markup import escape
    from rich.table import Table

    from tenfold.data import SOURCES, available
    from tenfold.machine.doctor import Finding, examine
    from tenfold.runs.store import default_folder

    findings = examine(runs or default_folder())
    for one in available():
        here = one.where is not None or not SOURCES[one.name].files
        found = str(one.where) if one.where else "ships with scikit-learn" if here else "not on this machine"
        advice = "" if here else f"`tenfold data get {one.name}` fetches it"
        findings.append(Finding(f"data: {one.name}", found, "ok" if here else "note", advice))
    if as_json:
        print_json([asdict(finding) for finding in findings])
        return
    table = Table("what", "", "found", "what to do")
    for finding in findings:
        table.add_row(finding.topic, MARKS[finding.status], escape(finding.found), escape(finding.advice))
    print_rich(table)
    problems = sum(finding.status == "problem" for finding in findings)
    typer.echo("no problems found" if not problems else f"{problems} problem(s); see the last column")
