"""`tenfold recipe`: the experiments of five papers, beside the papers' numbers."""

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenfold.cli import options
from tenfold.cli.options import complete_run
from tenfold.cli.output import exit_interrupted, exit_partial, print_json, print_rich, showing_progress
from tenfold.errors import ExperimentError, TenfoldError

if TYPE_CHECKING:
    from tenfold.papers.recipe import Recipe
    from tenfold.papers.recipe_result import RecipeResult


app = typer.Typer(invoke_without_command=True, help="List, show and run the experiments of five papers.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="A recipe's name, or the path of your own TOML file.")]


@app.callback()
def list_by_default(context: typer.Context, as_json: options.Json = False) -> None:
    """List, show and run the experiments of five papers; without a command, list them."""
    if context.invoked_subcommand is None:
        list_recipes(as_json)


@app.command("list")
def list_recipes(as_json: options.Json = False) -> None:
    """List the recipes by paper, with what each needs and how long it takes.

    Example: [cyan]tenfold recipe list[/]
    """
    from tenfold.papers.recipe import NEEDS, load, names
    from tenfold.reports.tables import TextTable

    recipes = [load(name) for name in names()]
    if as_json:
        print_json(
            [{"name": item.name, "title": item.title, "needs": item.needs, "seconds": item.seconds} for item in recipes]
        )
        return
    for citation, group in groupby(recipes, key=lambda recipe: recipe.paper.citation):
        rows = [
            (
                *(recipe.name, f"{recipe.paper.place}: {recipe.title}"),
                *(", ".join(NEEDS[need] for need in recipe.needs), _time(recipe.seconds)),
            )
            for recipe in group
        ]
        print_rich(TextTable(("recipe", "what it runs", "needs", "small, about"), rows, citation).to_rich(words=3))
    whole = _time(sum(item.seconds for item in recipes if "gpu" not in item.needs))
    typer.echo("`tenfold recipe show NAME` shows one, `tenfold recipe run NAME -o page.html` runs it,")
    typer.echo(
        f"`tenfold recipe run --all -o papers.html` runs all, at scale small in about {whole}; times are those of"
    )
    typer.echo("two idle cores without a GPU, and of the first time: recorded runs are not repeated")


@app.command()
def show(name: Name, as_json: options.Json = False) -> None:
    """Show what a recipe runs, the paper's numbers, and doubts about them.

    Example: [cyan]tenfold recipe show dsmp-table-3[/]
    """
    from tenfold.papers.recipe import load
    from tenfold.papers.recipe_result import RecipeResult
    from tenfold.reports.tables import TextTable

    recipe = load(name)
    if as_json:
        print_json(recipe.model_dump())
        return
    typer.echo(f"{recipe.name}: {recipe.title}\n{recipe.paper.citation}, {recipe.paper.place}")
    if recipe.paper.note:
        typer.echo(recipe.paper.note)
    typer.echo("experiment: " + _fields(recipe.experiment))
    for block in recipe.blocks:
        varied = [f"{key} in {values}" for key, values in block.vary.items()]
        varied += [" | ".join(_fields(item) for item in block.together)] if block.together else []
        typer.echo(f"{block.verb}: {'; '.join(varied)}" + (f" with {_fields(block.fields)}" if block.fields else ""))
    for scale, size in recipe.scales.items():
        typer.echo(
            f"scale {scale}: {_fields(size.fields) or 'as above'}" + (f"; {_fields(size.vary)}" if size.vary else "")
        )
    if recipe.rows:
        table = RecipeResult(recipe, "full", []).table()
        print_rich(TextTable(table.columns[:-1], [line[:-1] for line in table.rows]).to_rich())


@app.command()
@options.with_executor
def run(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A recipe's name, or your own TOML file.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Run every built-in recipe.")] = False,
    scale: Annotated[
        str,
        typer.Option(
            help="small (at most half a minute each), machine (the full data, a few epochs), or full (as in the paper)."
        ),
    ] = "small",
    device: options.Device = None,
    where: options.Where | None = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Repeat runs that are already recorded.")] = False,
    output: options.Report = None,
    runs: options.Runs = None,
    trust: options.Trust = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Run a recipe and show its numbers beside the paper's; recorded runs are repeated only with [cyan]--fresh[/].

    Examples: [cyan]tenfold recipe run dsmp-table-3 -o table3.html[/],
    [cyan]tenfold recipe run --all --scale small -o papers.html[/], [cyan]tenfold recipe run --all --on ray[/]
    """
    if everything == (name is not None):
        raise ExperimentError("name one recipe, or give --all")
    from tenfold.papers.recipe import load, names
    from tenfold.papers.recipe_page import write

    recipes = [load(item, trust=trust) for item in (names() if everything else [str(name)])]
    about = {"scale": scale, "device": device, "runs": runs, "fresh": fresh}
    results = _run_all(recipes, quiet or as_json, everything, where.open() if where is not None else "local", about)
    if as_json:
        print_json([_record(result) for result in results])
    else:
        print_rich(*results)
    if output is not None:
        typer.echo(f"the page is in {write(results, output)}", err=as_json)
    if partial := [result for result in results if not result.complete]:
        for result in partial:
            for reason in result.missing():
                typer.secho(f"{result.recipe.name}: {reason}", err=True, fg="yellow")
        exit_partial(f"incomplete: {', '.join(result.recipe.name for result in partial)}")


def _run_all(
    recipes: Sequence["Recipe"], quiet: bool, everything: bool, on: Any, about: dict[str, Any]
) -> list["RecipeResult"]:
    """Run recipes one after another; with --all, one that fails does not stop the others."""
    from tenfold.papers.recipe import SCALES
    from tenfold.papers.recipe_result import RecipeResult
    from tenfold.papers.run_recipe import run as run_recipe

    results = []
    try:
        with showing_progress(quiet) as show_line, nullcontext() if on == "local" else on:
            for at, item in enumerate(recipes, 1):

                def tell(what: str, place: str = f"recipe {at} of {len(recipes)}: " if everything else "") -> None:
                    show_line(place + what)

                try:
                    results.append(run_recipe(item, progress=tell, on=on, **about))
                except (TenfoldError, RuntimeError, ValueError, OSError) as error:
                    if not everything or about["scale"] not in SCALES:
                        raise
                    results.append(RecipeResult(item, about["scale"], [], problem=str(error).partition("\n")[0]))
    except KeyboardInterrupt:
        exit_interrupted("finished runs are recorded: run the same command again to continue", on)
    return results


def _time(seconds: float) -> str:
    if seconds < 1:
        return "at once"
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _record(result: Any) -> dict[str, Any]:
    shown = ("label", "paper", "ours", "clock", "note", "doubts")
    return {
        "recipe": result.recipe.name,
        "scale": result.scale,
        "rows": [{name: getattr(row, name) for name in shown} for row in result.rows],
        "agreement": result.agreement(),
        "missing": result.missing(),
    }


def _fields(fields: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in fields.items())


def recommend(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run on tweets: its number or title, or last.", autocompletion=complete_run
        ),
    ],
    person: Annotated[
        str | None, typer.Option("--person", help="A screen name. Default: compare the run with simple rules.")
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="How many people to recommend.")] = 10,
    runs: options.Runs = None,
    trust: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Recommend whom a person should follow, with the model of a run on tweets.

    Without --person, the precision, recall, MAP and NDCG of the model on the people of the test part are shown beside
    those of simple rules: random, most followed, neighbors by text, and ridge regression.

    Examples: [cyan]tenfold recommend last --person SenSanders --top 10[/], [cyan]tenfold recommend last[/]
    """
    from dataclasses import asdict

    from tenfold.papers.recommender import PeopleToFollow
    from tenfold.reports.tables import TextTable
    from tenfold.runs.open_run import open_run

    people = PeopleToFollow(open_run(run, runs=runs, trust=trust))
    if person is None:
        rows = people.table(top)
        if as_json:
            print_json(rows)
            return
        heads = ["", *(name.replace("_", " ") for name in next(iter(rows.values())))]
        lines = [[name, *(f"{value:.4f}" for value in values.values())] for name, values in rows.items()]
        print_rich(TextTable(heads, lines).to_rich())
        typer.echo(f"over the {len(people.tested)} people of the test part")
        return
    recommended = people.recommend(person, top)
    if as_json:
        print_json([asdict(item) for item in recommended])
        return
    lines = [
        [str(rank), f"@{item.name}", f"{item.probability:.0%}", "yes" if item.followed else ""]
        for rank, item in enumerate(recommended, 1)
    ]
    print_rich(TextTable(["", "person", "probability", "followed already"], lines).to_rich(words=2))
