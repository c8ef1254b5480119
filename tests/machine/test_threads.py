import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenfold.errors import MachineError
from tenfold.machine import threads
from tenfold.machine.threads import wait_policy_for_children


@given(budget=st.integers(1, 256), workers=st.integers(1, 256))
def test_an_equal_share_fits_the_budget_unless_there_are_more_workers_than_cores(budget: int, workers: int) -> None:
    each = threads.share(budget, workers)
    assert each >= 1
    assert workers * each <= max(budget, workers)
    assert workers * (each + 1) > budget


@given(budget=st.integers(1, 64), workers=st.integers(1, 64), asked=st.integers(1, 64))
def test_threads_that_fit_are_given_and_others_only_on_purpose(budget: int, workers: int, asked: int) -> None:
    assert threads.share(budget, workers, asked, oversubscribe=True) == asked
    if workers * asked <= budget:
        assert threads.share(budget, workers, asked) == asked
    else:
        with pytest.raises(MachineError, match="or set oversubscribe to true"):
            threads.share(budget, workers, asked)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            (8, 4, 3),
            "4 workers x 3 threads need 12 cores, but this process may use 8; "
            "use at most 2 threads each, or set oversubscribe to true",
        ),
        (
            (2, 4, 1),
            "4 workers x 1 threads need 4 cores, but this process may use 2; "
            "use at most 2 workers of 1 thread, or set oversubscribe to true",
        ),
        ((2, 0), "cannot share 2 cores among 0 workers; there must be at least 1"),
        ((2, 1, 0), "cannot give each worker 0 threads; there must be at least 1"),
    ],
)
def test_what_does_not_fit_is_explained(arguments: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(MachineError, match=f"^{re.escape(sentence)}$"):
        threads.share(*arguments)


class TestWaiting:
    @pytest.mark.parametrize(
        ("load", "now", "policy"),
        [(0.2, 0.0, None), (7.0, 7.2, "PASSIVE"), (7.0, 0.4, None), (7.0, None, "PASSIVE")],
        ids=["idle", "busy", "no longer busy", "busy by the last minute"],
    )
    def test_threads_sleep_on_a_busy_machine_only(
        self, load: float, now: float | None, policy: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
        monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
        monkeypatch.setattr(threads, "running_elsewhere", lambda: now)
        monkeypatch.setattr(os, "cpu_count", lambda: 8)
        with wait_policy_for_children():
            assert os.environ.get("OMP_WAIT_POLICY") == policy
        assert "OMP_WAIT_POLICY" not in os.environ

    def test_what_the_user_set_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OMP_WAIT_POLICY", "active")
        monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
        with wait_policy_for_children():
            assert os.environ["OMP_WAIT_POLICY"] == "active"
        assert os.environ["OMP_WAIT_POLICY"] == "active"


@pytest.mark.parametrize(("load", "policy"), [(100.0, "PASSIVE"), (0.0, None)])
def test_threads_of_the_command_line_sleep_on_a_busy_machine(
    monkeypatch: pytest.MonkeyPatch, load: float, policy: str | None
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setattr(threads, "running_elsewhere", lambda: load)
    monkeypatch.setattr(os, "environ", {})
    threads.set_wait_policy()
    assert os.environ.get("OMP_WAIT_POLICY") == policy
