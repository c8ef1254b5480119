"""The command line, in this process."""

from click.testing import Result
from typer.testing import CliRunner

from tenfold.cli import app


def tenfold_(*arguments: str) -> Result:
    """Run a verb; whatever is not meant for the user is raised."""
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
