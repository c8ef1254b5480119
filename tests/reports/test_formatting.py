import math

from hypothesis import given
from hypothesis import strategies as st
from looped import looped

from tenfold.reports import formatting


@looped(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.00042, "420 µs"),
        (0.0381, "38.1 ms"),
        (0.9999, "1.00 s"),
        (0.0009997, "1.00 ms"),
        (4.213, "4.21 s"),
        (99.94, "99.9 s"),
        (99.96, "1 min 40 s"),
        (725, "12 min 05 s"),
        (3599.7, "1 h 00 min"),
        (7380, "2 h 03 min"),
        (None, formatting.NOTHING),
        (math.nan, formatting.NOTHING),
    ],
)
def test_duration_picks_the_unit(seconds, text):
    assert formatting.duration(seconds) == text


@given(st.floats(min_value=0, max_value=1e7))
def test_duration_always_has_a_unit_and_no_exponent(seconds):
    text = formatting.duration(seconds)
    assert text.split()[-1] in {"µs", "ms", "s", "min"}
    assert "e+" not in text


@looped(
    ("name", "value", "text"),
    [
        ("accuracy", 0.98312, "98.31%"),
        ("test accuracy", 1.0, "100.00%"),
        ("loss", 0.0812, "0.0812"),
        ("loss", 0.0, "0.0000"),
        ("loss", 1.2e-7, "1.2e-07"),
        ("loss", math.nan, "not a number"),
        ("loss", math.inf, "infinite"),
        ("loss", None, formatting.NOTHING),
    ],
)
def test_measure_knows_accuracies(name, value, text):
    assert formatting.metric_value(name, value) == text


@looped(
    ("passed", "text"),
    [(-5, "just now"), (3, "just now"), (45, "45 s ago"), (200, "3 min ago"), (7300, "2 h ago"), (90000, "1 day ago")],
)
def test_ago(passed, text):
    assert formatting.ago(1_000_000, 1_000_000 + passed) == text


def test_long_ago_is_a_date():
    assert formatting.ago(1_700_000_000, 1_800_000_000).startswith("2023-11-1")


@looped(
    ("value", "text"),
    [
        (None, "unset"),
        (True, "true"),
        ([128, 64], "[128, 64]"),
        ({"sides": 1}, "{sides = 1}"),
        (0.1, "0.1"),
        ("a\x1b[2Jb\nc", "a [2Jb c"),
    ],
)
def test_settings_look_as_in_a_file(value, text):
    assert formatting.field_value(value) == text


@given(st.text())
def test_plain_text_cannot_steer_a_terminal(text):
    assert formatting.one_line(text).isprintable()
    assert len(formatting.one_line(text)) == len(text)


@looped(
    ("times", "text"),
    [(None, "–"), (0.0, "0"), (0.0123, "0.012"), (0.75, "0.750"), (8.003, "8.00"), (20.94, "20.9"), (209.4, "209")],
)
def test_a_multiple_has_three_digits(times, text):
    assert formatting.ratio(times) == text


def test_storage():
    assert formatting.byte_size(16 * 2**30) == "16 GiB"
    assert formatting.byte_size(500) == "500 B"
    assert formatting.byte_size(3 * 2**50) == "3.07e+03 TiB"
