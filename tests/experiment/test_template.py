import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenfold.experiment import SECTIONS, Experiment
from tenfold.experiment.experiment import WIDTH, commented

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=15)
plain = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def reloaded(experiment, folder):
    path = folder / "template.toml"
    path.write_text(commented(experiment), encoding="utf-8")
    return Experiment.load(path)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"name": 'a "title" with = # everything\\', "model": "mlp", "hidden": [64, 32], "lr": 0.1},
        {"hidden": [], "metrics": ["mae", "rmse"], "loss": "mse", "optimizer_options": {"betas": (0.9, 0.99)}},
        {"workers": 2, "shards": "fractions", "fractions": [0.25, 0.75], "strategy_options": {"a b": {"c.d": [1]}}},
        {"lr": 1e-300, "weight_decay": 1e300, "seed": 2**63 - 1, "cluster": "a/b.toml"},
    ],
)
def test_the_template_loads_back_to_the_same_experiment(tmp_path, fields):
    assert reloaded(Experiment(**fields), tmp_path) == Experiment(**fields)


@settings(deadline=None, derandomize=True)
@given(texts, st.dictionaries(texts, plain, max_size=3))
def test_any_title_and_any_options_load_back(tmp_path_factory, title, options):
    original = Experiment(name=title, model_options=options)
    assert reloaded(original, tmp_path_factory.getbasetemp()) == original


def test_every_field_is_there_under_its_explanation():
    text = commented(Experiment())
    words = " ".join(line.removeprefix("# ") for line in text.splitlines())
    for key, section in SECTIONS.items():
        assert f"\n[{key}]\n" in text
        for field, info in section.model_fields.items():
            assert f"\n{field} = " in text or f"\n# {field} =\n" in text
            assert " ".join(info.description.split()) in words


def test_unset_fields_are_comments_and_set_ones_are_not():
    assert "\n# lr =\n" in commented(Experiment())
    assert "\nlr = 0.5\n" in commented(Experiment(lr=0.5))
    assert "lr" not in tomllib.loads(commented(Experiment()))["training"]


def test_no_line_of_explanation_is_too_long():
    assert max(map(len, commented(Experiment()).splitlines())) <= WIDTH
