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


def assert_one_sentence(said: Result, expected: str) -> None:
    """Check that a verb was refused in one sentence, which has these words."""
    assert (said.exit_code, said.stdout) == (2, "")
    assert said.stderr.startswith("error: ")
    assert len(said.stderr.splitlines()) == 1
    assert expected in said.stderr
