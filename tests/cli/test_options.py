"""What options of several verbs mean."""

import pytest
from looped import looped

from tenfold.cli.options import parse_setting, ranks_from
from tenfold.errors import ExperimentError


def test_ranks_are_numbers_or_all() -> None:
    assert ranks_from("1, 3", 4) == {1, 3}
    assert ranks_from(" all ", 4) is None


@looped("ranks", ["", "first", "1,,2", "1;2", "-1"])
def test_what_names_no_ranks_is_a_sentence(ranks: str) -> None:
    with pytest.raises(ExperimentError, match="0,3"):
        ranks_from(ranks, 4)


def test_a_rank_that_is_not_there_is_a_sentence() -> None:
    with pytest.raises(ExperimentError, match="0 to 1"):
        ranks_from("0,7", 2)


@looped(
    ("text", "key", "value"),
    [
        ("lr=0.1", "lr", 0.1),
        (" lr = 0.1 ", "lr", 0.1),
        ("lr=.1", "lr", 0.1),
        ("lr=1.e-3", "lr", 0.001),
        ("batch-size=32", "batch_size", 32),
        ("training.batch-size=32", "training.batch_size", 32),
        ("hidden=[64, 32]", "hidden", [64, 32]),
        ("nesterov=true", "nesterov", True),
        ("optimizer=adam", "optimizer", "adam"),
        ('optimizer="adam"', "optimizer", "adam"),
        ("data=fashion-mnist", "data", "fashion-mnist"),
        ("strategy_options={sides = 1}", "strategy_options", {"sides": 1}),
        ("name=a=b", "name", "a=b"),
        ("name=", "name", ""),
        ("name=1\nlr=2", "name", "1\nlr=2"),
        ("epochs=" + "9" * 5000, "epochs", "9" * 5000),
    ],
)
def test_settings_are_read_as_toml_else_as_text(text: str, key: str, value: object) -> None:
    assert parse_setting(text) == (key, value)


@looped("text", ["", "lr", "=3", " = "])
def test_a_setting_without_a_field_or_a_value_is_explained(text: str) -> None:
    with pytest.raises(ExperimentError, match=r"lr=0\.1"):
        parse_setting(text)


@looped(
    ("text", "sentence"),
    [
        ("hidden=[64, 32", "unfinished"),
        ("hidden=[64 32]", r"'\[64 32\]' is not a valid list; write \[64, 32\]"),
        ("strategy_options={sides=1", "sides=1"),
        ("hidden=" + "[" * 5000, "is an unfinished list"),
    ],
)
def test_an_unfinished_list_or_table_is_explained(text: str, sentence: str) -> None:
    with pytest.raises(ExperimentError, match=sentence):
        parse_setting(text)
