import pytest
from looped import looped
from made_store import DIGITS, new_run

from tenfold.errors import StoreError
from tenfold.runs import Run
from tenfold.runs.open_run import filter_runs

METRICS = {"accuracy": 0.98, "loss": 0.1, "map_error": 0.5, "recall": 97.0}
"""Of the first run; the last two are the user's own, one of them in percent."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Three runs: two workers with ring, four with butterfly, and one that failed."""
    store, first = new_run(
        tmp_path_factory.mktemp("runs"), DIGITS.replace(workers=2, strategy="ring", name="two words", hidden=[64, 32])
    )
    second = store.create(DIGITS.replace(workers=4, strategy="butterfly", lr=0.1), kind="train", metadata={})
    third = store.create(DIGITS.replace(metrics=["accuracy", "f1_macro"]), kind="train", metadata={})
    store.update(first, result={"metrics": METRICS, "seconds": 12.0}, status="finished")
    store.update(second, result={"metrics": {"accuracy": 0.995, "f1_macro": 0.9}, "seconds": 7.0}, status="finished")
    store.update(third, result={}, status="failed", error="the loss is nan")
    store.tag(second, "paper", "mnist")
    store.set_note(first, "with the fan on")
    return [Run(store, record) for record in store.runs()]


@looped(
    ("text", "numbers"),
    [
        ("", [1, 2, 3]),
        ("workers>=4", [2]),
        ("workers >= 2  workers<4", [1]),
        ("strategy=ring,butterfly", [1, 2]),
        ("strategy!=ring", [2, 3]),
        ("strategy=Ring", [1]),
        ("parallel.workers=2", [1]),
        ("parallel.strategy=butterfly", [2]),
        ("lr=0.1", [2]),
        ("lr=1e-1", [2]),
        ("accuracy>99%", [2]),
        ("accuracy>=.98 seconds<10", [2]),
        ("accuracy<=1", [1, 2]),
        ("accuracy<50", [1, 2]),
        ("accuracy<-1", []),
        ("map_error<5", [1]),
        ("map_error>5", []),
        ("recall>50 status=failed", []),
        ("accuracy>50%", [1, 2]),
        ("accuracy~98", [1]),
        ("accuracy=none", [3]),
        ("f1_macro>0.5", [2]),
        ("metrics=f1_macro", [3]),
        ("status=failed", [3]),
        ("error~NAN", [3]),
        ("tag=paper", [2]),
        ("tag=mnist tag=paper", [2]),
        ("tag!=paper", [1, 3]),
        ("tag=none", [1, 3]),
        ("note~fan", [1]),
        ("title='two words'", [1]),
        ('title~"o w"', [1]),
        ("run>1 run<=3", [2, 3]),
        ("age<1h", [1, 2, 3]),
        ("age>7d", []),
        ("created>2020-01-01", [1, 2, 3]),
        ("created<2020-01-01T12:00", []),
        ("patience=none", [1, 2, 3]),
    ],
)
def test_a_filter_selects_the_runs_for_which_all_of_it_holds(recorded, text, numbers):
    assert [run.id for run in filter_runs(recorded, text)] == numbers


@looped(
    ("text", "reason"),
    [
        ("workers", "workers"),
        (">=4", "'>=4' is not a condition"),
        ("workers>=", "has no value"),
        ("workers>=many", "many"),
        ("title='open", "closed"),
        ("age>7", "90s"),
        ("created>yesterday", "needs a date"),
        ("wrokers=2", "workers"),
        ("workers=>2", "operator"),
        ("status=finish", "finished"),
        ("accuracy>50", "0"),
        ("xyzzy=2", "`tenfold runs --help` says"),
    ],
)
def test_what_is_wrong_with_a_filter_is_said(recorded, text, reason):
    with pytest.raises(StoreError, match=reason):
        filter_runs(recorded, text)
