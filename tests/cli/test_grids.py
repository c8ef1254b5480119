"""How a grid's values are written on the command line."""

import pytest
from looped import looped

from tenfold.cli.compare import grid_of, several, varied
from tenfold.errors import ExperimentError


@looped(
    ("text", "values"),
    [
        ("64", [64]),
        ("1,2,4", [1, 2, 4]),
        ("ring, butterfly", ["ring", "butterfly"]),
        ("[[1, 2], [3]]", [[1, 2], [3]]),
        ("1,2,4,...,16", [1, 2, 4, 8, 16]),
        ("1,2,...,20", [1, 2, 4, 8, 16, 20]),
        ("1,2,3,...,6", [1, 2, 3, 4, 5, 6]),
        ("2,4,6,...,10", [2, 4, 6, 8, 10]),
        ("1,3,9,...,81", [1, 3, 9, 27, 81]),
        ("4,8,...,8", [4, 8]),
        ("{latency = 0.01, bandwidth = 12e6}", [{"latency": 0.01, "bandwidth": 12e6}]),
    ],
)
def test_values_are_read_as_they_are_meant(text: str, values: list[object]) -> None:
    assert several(text) == values


@looped("text", ["1,...,8", "...,8", "1,2,...", "2,1,...,8", "a,b,...,c", "1,2,...,8,9", "1,9,...,4"])
def test_a_row_that_leads_nowhere_is_a_sentence(text: str) -> None:
    with pytest.raises(ExperimentError, match="sequence"):
        several(text)


def test_any_field_can_vary() -> None:
    assert varied("training.momentum=0,0.9") == ("momentum", [0, 0.9])
    assert varied("hidden=[[64],[32,16]]") == ("hidden", [[64], [32, 16]])
    for text in ("hidden=64,32", "hidden=[64,32]"):
        with pytest.raises(ExperimentError, match="hidden"):
            varied(text)
    with pytest.raises(ExperimentError, match="momentum=0"):
        varied("momentum")


def test_the_grid_is_made_of_options_and_variations() -> None:
    assert grid_of({"lr": "0.1,0.2", "workers": None}, ["momentum=0,0.9"], ["epochs=3"]) == {
        "lr": [0.1, 0.2],
        "momentum": [0, 0.9],
    }


@looped(
    ("vary", "settings"),
    [(["momentum=0", "training.momentum=0.9"], []), (["lr=1"], []), ([], ["lr=0.5"]), ([], ["training.lr=0.5"])],
)
def test_a_field_is_given_once(vary: list[str], settings: list[str]) -> None:
    with pytest.raises(ExperimentError, match="is given twice"):
        grid_of({"lr": "0.1"}, vary, settings)
