"""Whatever a file holds, it is an experiment or it is refused in words."""

import copy
import tomllib

import pytest
import tomli_w
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from looped import looped
from typer.testing import CliRunner

from tenfold.cli import app
from tenfold.errors import ExperimentError
from tenfold.experiment import FIELDS, SECTIONS, Experiment
from tenfold.experiment.experiment import commented

VALID = commented(Experiment(hidden=[64, 32], lr=0.1, metrics=["accuracy"], strategy_options={"sides": 1})).encode()
KEYS = [
    *FIELDS,
    *SECTIONS,
    "name",
    "options",
    "self",
    "cls",
    "path",
    "training.lr",
    "model.options.x",
    "",
    "data.",
    ".x",
]

keys = st.sampled_from(KEYS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    | st.dates()
    | st.times()
    | st.datetimes()
    | st.sampled_from([2**63, -(2**64), 10**400, "mlp", "sgd", "<lambda>", "a:b", ":", "nan"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
tables = st.dictionaries(keys, values, max_size=6)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("malformed") / "x.toml"


def load_or_explain(path, content):
    """Return the experiment, or None where it was refused; anything but a sentence is a failure."""
    path.write_bytes(content)
    try:
        return Experiment.load(path)
    except ExperimentError as error:
        sentences = str(error).splitlines()
    assert sentences
    assert all(line.strip() for line in sentences)
    assert any(str(path) in line for line in sentences)
    return None


def usable(loaded):
    """Say whether a file that was accepted can be recorded, shown and written."""
    again = Experiment(**loaded.model_dump(mode="json"))
    shown, written = set(loaded.flat()), tomllib.loads(commented(loaded))
    return again.title == loaded.title and shown == {"name", *FIELDS} and written["name"] == loaded.name


@settings(deadline=None, derandomize=True, max_examples=120)
@given(tables)
def test_any_tables(path, fields):
    loaded = load_or_explain(path, tomli_w.dumps(fields).encode())
    assert loaded is None or usable(loaded)


@settings(deadline=None, derandomize=True, max_examples=80)
@given(st.sampled_from(sorted(FIELDS)), values)
def test_any_value_in_any_field(path, short, value):
    section, field = FIELDS[short]
    for fields in ({short: value}, {section: {field: value}}, {f"{section}.{field}": value}):
        loaded = load_or_explain(path, tomli_w.dumps(fields).encode())
        assert loaded is None or usable(loaded)


@settings(deadline=None, derandomize=True, max_examples=80)
@given(st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(1, 255)), min_size=1, max_size=4))
def test_flipped_bytes(path, flips):
    content = bytearray(VALID)
    for position, mask in flips:
        content[position] ^= mask
    loaded = load_or_explain(path, bytes(content))
    assert loaded is None or isinstance(loaded, Experiment)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.integers(0, len(VALID)), st.binary(max_size=8))
def test_truncated_files_with_something_at_the_end(path, length, rest):
    loaded = load_or_explain(path, VALID[:length] + rest)
    assert loaded is None or isinstance(loaded, Experiment)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.binary(max_size=200))
@example(b"\xef\xbb\xbf")
@example(b"\x00")
def test_any_bytes(path, content):
    loaded = load_or_explain(path, content)
    assert loaded is None or isinstance(loaded, Experiment)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.sampled_from(sorted(FIELDS)), values, tables)
def test_a_valid_file_with_one_value_replaced_and_more_on_top(path, short, value, more):
    fields = copy.deepcopy(tomllib.loads(VALID.decode()))
    section, field = FIELDS[short]
    fields[section][field] = value
    loaded = load_or_explain(path, tomli_w.dumps(fields | more).encode())
    assert loaded is None or isinstance(loaded, Experiment)


HOPELESS = {
    "deep lists": "a = " + "[" * 20_000,
    "deep lists, closed": "hidden = " + "[" * 20_000 + "]" * 20_000,
    "deep lists in options": "model_options = {a = " + "[" * 100 + "]" * 100 + "}",
    "deep tables": "a = " + "{a = " * 3_000 + "1" + "}" * 3_000,
    "a long dotted key": ".".join("a" * 3_000) + " = 1",
    "a long dotted key in options": "model.options." + ".".join("a" * 3_000) + " = 1",
    "a long dotted key in a field": "training.lr." + ".".join("a" * 3_000) + " = 1",
    "a long dotted table": "[" + ".".join("a" * 3_000) + "]",
    "thousands of digits": "epochs = " + "9" * 5_000,
    "thousands of hex digits": "epochs = 0x" + "f" * 5_000,
    "thousands of hex digits in a list": "hidden = [0x" + "f" * 5_000 + "]",
    "thousands of hex digits in options": "model_options = {a = 0x" + "f" * 5_000 + "}",
    "a float beyond floats": "lr = 1e400",
    "an integer beyond floats": "lr = " + "9" * 400,
    "not a number": "lr = nan",
    "an option that is not a number": "optimizer_options = {eps = nan}",
    "a date": "name = 1979-05-27",
    "self": "self = 1",
    "cls": "cls = 1",
    "path": "path = 1",
    "a section that is a number": "training = 1\nlr = 0.1",
    "a section that is a list": "training = [1]\ndivision = [1]",
    "a list of sections": "[[training]]\nlr = 0.1",
    "a section in a section": "[training.training]\nlr = 0.1",
    "a line break in a key": '"a\\nb" = 1',
    "an empty key": '"" = 1',
    "a nul": 'optimizer = "\\u0000"',
    "an escape code": 'optimizer = "\\u001b[31m"',
    "right to left": '"\u202eرل" = "\u202e"',
    "the same key twice": "lr = 1\nlr = 2",
    "a file of another kind": "%PDF-1.4",
    "json": '{"model": "mlp"}',
    "yaml": "model: mlp\nlr: 0.1",
}


def train(*arguments):
    return CliRunner().invoke(app, ["train", *map(str, arguments)])


def assert_refused(result):
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    assert result.stderr.startswith("error: ")


@looped("content", HOPELESS.values())
def test_hopeless_files_are_refused(path, tmp_path, content):
    assert load_or_explain(path, content.encode()) is None
    assert_refused(train(path, "--runs", tmp_path))


@settings(deadline=None, derandomize=True, max_examples=20)
@given(tables)
def test_the_command_line_refuses_any_wrong_tables(path, fields):
    assume(load_or_explain(path, tomli_w.dumps(fields).encode()) is None)
    assert_refused(train(path, "--runs", path.parent / "runs"))


# These are well-formed, and turn out to be wrong only where they are used.
MISFITS = [
    'loss = "torch.nn:nothing_here"',
    'model = "no_such_module_at_all:Net"',
    'model = "math:pi"',
    'model = "<lambda>"',
    'data = "<tensors>"',
    'data = "no_such_module_at_all:load"',
    "data = 3",
    "data_options = {a = 1}",
    "hidden = [3]",
    'model_options = {activation = ["relu"]}',
    'model_options = {shape = "x"}',
    'device = "abacus"',
    'pin = "everywhere"',
    'optimizer = "adam"\noptimizer_options = {betas = 3}',
    'optimizer = "adam"\noptimizer_options = {betas = [0.9]}',
    "optimizer_options = {stacked = true, foreach = true}",
    "optimizer_options = {lr = 1.0}",
    "optimizer_options = {speed = 1.0}",
    'optimizer = "sgd"\nnesterov = true\nmomentum = 0.0',
    'optimizer = "lbfgs"\nweight_decay = 0.1',
    'metrics = ["accuracy", "accuracy"]',
    'loss = "math:pi"',
]


@pytest.mark.parametrize("content", MISFITS)
def test_the_command_line_explains_what_does_not_fit(path, tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    base = "" if "data" in content else 'data = "digits"\n'
    path.write_text(base + "epochs = 1\nlimit = 64\n" + content)
    assert_refused(train(path, "--runs", tmp_path / "runs", "--quiet"))
