"""What options of several verbs mean."""

import pytest

from tenfold.cli.options import ranks_from
from tenfold.errors import ExperimentError


def test_ranks_are_numbers_or_all() -> None:
    assert ranks_from("1, 3", 4) == {1, 3}
    assert ranks_from(" all ", 4) is None


@pytest.mark.parametrize("ranks", ["", "first", "1,,2", "1;2", "-1"])
def test_what_names_no_ranks_is_a_sentence(ranks: str) -> None:
    with pytest.raises(ExperimentError, match="names no ranks; write numbers such as 0,3, or all"):
        ranks_from(ranks, 4)


def test_a_rank_that_is_not_there_is_a_sentence() -> None:
    with pytest.raises(ExperimentError, match="there is no rank 7; there are ranks 0 to 1"):
        ranks_from("0,7", 2)
