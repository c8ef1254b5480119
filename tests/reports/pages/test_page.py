import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tenfold.reports.pages.page import MOST_SPANS, Curves, Lanes
from tenfold.reports.summary import KINDS

NUMBERS = st.floats(-1e6, 1e6)


def metrics(values, name="loss"):
    common = {"type": "metric", "name": name, "part": "train", "worker": 0}
    return [(at + 1, {**common, "step": at, "seconds": at / 10, "value": value}) for at, value in enumerate(values)]


@given(st.lists(NUMBERS, min_size=1, max_size=300), st.integers(1, 20))
def test_thinning_keeps_ends_and_extremes_in_order(values, columns):
    curves = Curves()
    curves.add(metrics(values))
    (thin,) = curves.between(-np.inf, np.inf, columns)
    kept = thin["step"]
    assert kept == sorted(set(kept))
    assert kept[0] == 0
    assert kept[-1] == len(values) - 1
    assert len(kept) <= max(2 * columns + 2, 2 * columns)
    assert np.isclose(max(thin["value"]), max(values), rtol=1e-4, atol=1e-9)
    assert np.isclose(min(thin["value"]), min(values), rtol=1e-4, atol=1e-9)


@given(st.integers(0, 60), st.integers(0, 60))
def test_a_cursor_gets_exactly_what_came_after_it(count, cursor):
    curves = Curves()
    curves.add(metrics([float(at) for at in range(count)]))
    found = curves.since(cursor)
    assert [value for item in found for value in item["step"]] == list(range(min(cursor, count), count))


def test_damaged_and_infinite_measurements_are_left_out():
    curves = Curves()
    good = metrics([1.0])[0]
    curves.add([(2, {"type": "metric", "name": "loss"}), (3, good[1] | {"value": float("nan")}), good])
    curves.add([(4, good[1] | {"step": "many"}), (5, {"type": "span"})])
    assert [len(curve.value) for curve in curves] == [1]


def spans(count, workers=2, seconds=0.01):
    common = {"type": "span", "count": 1}
    return [
        (
            at * workers + worker,
            {**common, "kind": KINDS[at % 4], "at": at * seconds, "seconds": seconds, "worker": worker},
        )
        for at in range(count)
        for worker in range(workers)
    ]


def test_many_spans_become_sums_of_the_same_time():
    lanes = Lanes()
    lanes.add(spans(MOST_SPANS))
    summed = lanes.between(0, np.inf, 100)
    assert len(summed["at"]) <= 2 * 100 * 4
    for at, kind in enumerate(KINDS[:4]):
        total = sum(length for length, item in zip(summed["length"], summed["kind"], strict=True) if item == at) / 2e6
        assert np.isclose(total, lanes.times()[kind], rtol=0.01)
    few = lanes.between(1.0, 1.1, 100)
    assert set(few["worker"]) == {0, 1}
    assert all(0.98 * 1e6 <= item <= 1.1e6 for item in few["at"])


def test_sums_of_one_stretch_are_laid_out_one_after_another():
    lanes = Lanes()
    common = {"type": "span", "worker": 0, "at": 2.0, "count": 20}
    lanes.add([(1, {**common, "kind": "compute", "seconds": 0.5}), (2, {**common, "kind": "wait", "seconds": 0.25})])
    lanes.add([(3, {**common, "kind": "communicate", "seconds": 0.1, "count": 1})])
    assert lanes.since(0)["at"] == [2_000_000, 2_500_000, 2_750_000]
