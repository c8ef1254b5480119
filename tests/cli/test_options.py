"""What options of several verbs mean."""

import pytest

from tenfold.cli.options import ranks_from
from tenfold.errors import ExperimentError


def test_ranks_are_numbers_or_all() -> None:
    assert ranks_from("1, 3") == {1, 3}
    assert ranks_from(" all ") is None


@pytest.mark.parametrize("ranks", ["", "first", "1,,2", "1;2", "-1"])
def test_what_names_no_ranks_is_a_sentence(ranks: str) -> None:
    with pytest.raises(ExperimentError, match="names no ranks; write numbers such as 0,3, or all"):
        ranks_from(ranks)
