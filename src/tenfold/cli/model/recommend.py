"""`tenfold recommend`: recommend whom a person should follow, with the model of a run on tweets."""

from typing import Annotated

import typer

from tenfold.cli import options
from tenfold.cli.completion import complete_run
from tenfold.cli.output import print_json, print_rich


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
    those of simple rules: random, most followed, neighbours by text, and ridge regression.

    Examples: [cyan]tenfold recommend last --person SenSanders --top 10[/], [cyan]tenfold recommend last[/]
    """
    from dataclasses import asdict

    from rich.table import Table

    from tenfold.api.open_run import open_run
    from tenfold.api.recommend import PeopleToFollow

    people = PeopleToFollow(open_run(run, runs=runs, trust=trust))
    if person is None:
        rows = people.table(top)
        if as_json:
            print_json(rows)
            return
        heads = next(iter(rows.values()))
        table = Table("", *(name.replace("_", " ") for name in heads))
        for name, values in rows.items():
            table.add_row(name, *(f"{value:.4f}" for value in values.values()))
        print_rich(table)
        typer.echo(f"over the {len(people.tested)} people of the test part")
        return
    found = people.recommend(person, top)
    if as_json:
        print_json([asdict(one) for one in found])
        return
    table = Table("", "person", "probability", "followed already")
    for rank, one in enumerate(found, 1):
        table.add_row(str(rank), f"@{one.name}", f"{one.probability:.0%}", "yes" if one.followed else "")
    print_rich(table)
