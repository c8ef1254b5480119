"""`tenfold schema`: the JSON schema of experiment files."""

from tenfold.cli.output import print_json


def schema() -> None:
    """Print the JSON schema of experiment files, for editors that check and complete TOML.

    Example: [cyan]tenfold schema > experiment.schema.json[/]
    """
    from tenfold.experiment import Experiment

    print_json(Experiment.model_json_schema())
