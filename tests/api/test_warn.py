"""How warnings of a run reach a caller without a listener."""

import pytest

from tenfold.api.train import warn
from tenfold.runs import Warned


@pytest.mark.parametrize("rank", [0, 1])
def test_a_warning_names_its_worker(rank: int) -> None:
    with pytest.warns(UserWarning, match=rf"^worker {rank}: odd$"):
        warn(Warned(at=0.0, text="odd", worker=rank, concerns_worker=True))


def test_a_warning_about_the_run_names_none_but_the_line_of_the_users_code() -> None:
    with pytest.warns(UserWarning, match="^odd$") as caught:
        warn(Warned(at=0.0, text="odd"))
    assert caught[0].filename == __file__
