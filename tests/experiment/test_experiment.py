import functools
import json
import pickle
import string

import numpy as np
import pydantic
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from looped import looped
from torch.nn import functional

from tenfold import experiment, registry
from tenfold.cluster import Cluster, Link
from tenfold.common.metric_traits import METRICS
from tenfold.common.optimizer_defaults import OPTIMIZERS
from tenfold.errors import ExperimentError
from tenfold.experiment import FIELDS, SECTIONS, Experiment, Parallel, nested
from tenfold.experiment import experiment as experiment_fields
from tenfold.experiment.values import PythonObject
from tenfold.models.networks import ACTIVATIONS

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
whole = st.integers(0, 2**63 - 1)
counts = st.integers(1, 2**63 - 1)
shares = st.floats(0, 1, exclude_min=True, exclude_max=True)
from_zero = st.floats(0, 1, exclude_max=True)
positive = st.floats(0, exclude_min=True, allow_infinity=False)
not_negative = st.floats(0, allow_infinity=False)
plain = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
options = st.dictionaries(texts, plain, max_size=3)

VALUES = {
    "name": texts,
    "model": st.sampled_from([*registry.MODELS, "package.module:Net"]),
    "hidden": st.none() | st.lists(counts, max_size=4).map(tuple),
    "dropout": st.none() | from_zero,
    "batchnorm": st.none() | st.booleans(),
    "data": st.sampled_from([*registry.SOURCES, "package.module:load"]),
    "test_fraction": st.none() | shares,
    "validation_fraction": from_zero,
    "stratify": st.booleans(),
    "split_seed": whole,
    "limit": st.none() | counts,
    "epoch_samples": st.none() | counts,
    "groups": st.none() | st.just("package.module:groups"),
    "target_column": st.none() | texts,
    "input_columns": st.none() | st.lists(texts, max_size=3).map(tuple),
    "classes": st.none() | st.integers(2, 10**6),
    "standardize": st.none() | st.booleans(),
    "collate": st.none() | st.just("package.module:collate"),
    "loader_workers": whole,
    "epochs": counts,
    "batch_size": counts,
    "lr": st.none() | positive,
    "momentum": from_zero,
    "nesterov": st.booleans(),
    "weight_decay": not_negative,
    "accumulate": counts,
    "activation_checkpointing": st.booleans() | st.lists(texts, max_size=3).map(tuple),
    "ema": st.none() | shares,
    "warmup": not_negative,
    "clip": st.none() | positive,
    "loss": st.none() | st.sampled_from([*registry.LOSSES, "package.module:loss"]),
    "metrics": st.lists(st.sampled_from([*METRICS, "f1_macro"]), unique=True).map(tuple),
    "lower_is_better": st.none() | st.booleans(),
    "patience": st.none() | counts,
    "target": st.none() | not_negative,
    "evaluate_every": st.floats(0, 1, exclude_min=True),
    "seed": whole,
    "log_every": counts,
    "save_predictions": st.booleans(),
    "workers": counts,
    "stages": st.none(),  # they have a rule of their own: workers are a multiple of them
    "micro_batches": st.none() | counts,
    "sync_every": st.none() | counts,
    "local_after": whole,
    "skew": positive,
    "fractions": st.none() | st.lists(shares, max_size=3).map(tuple),
    "folds": st.none() | st.integers(2, 2**63 - 1),
    "fold_repeats": counts,
    "device": texts,
    "threads": st.none() | counts,
    "pin": texts,
    "oversubscribe": st.booleans(),
    "compile": st.sampled_from([True, False, "auto"]),
    "stall_after": st.none() | positive,
    "replacements": st.integers(1, 9),
    "cluster": st.none() | texts | options,
    "link": st.none() | texts,
} | {short: options for short in FIELDS if short.endswith("options")}


def choices(short):
    section, field = FIELDS[short]
    schema = SECTIONS[section].model_json_schema()["properties"][field]
    return next(item["enum"] for item in (schema, *schema.get("anyOf", ())) if "enum" in item)


for short in FIELDS:
    if short not in VALUES:
        VALUES[short] = st.sampled_from([*choices(short), *([None] if short in ("activation", "schedule") else [])])
# These shares have a rule of their own, tested below.
VALUES["shards"] = VALUES["shards"].filter(lambda kind: kind != "fractions")

law = settings(deadline=None, derandomize=True)
some_fields = st.fixed_dictionaries({}, optional=VALUES)


def refusal(*args, **fields):
    with pytest.raises(ExperimentError) as caught:
        Experiment(*args, **fields)
    return str(caught.value)


def own_loss(outputs, targets):
    return (outputs - targets).square().mean()


class Makers:
    @classmethod
    def small(cls):
        return None

    def bound(self):
        return None


@law
@given(some_fields)
def test_a_saved_experiment_loads_as_the_same_value(tmp_path_factory, fields):
    path = tmp_path_factory.getbasetemp() / "round_trip.toml"
    original = Experiment(**fields)
    original.save(path)
    assert Experiment.load(path) == original


@law
@given(some_fields)
def test_an_experiment_survives_the_json_of_the_run_store(fields):
    original = Experiment(**fields)
    assert Experiment(**json.loads(original.model_dump_json())) == original


@law
@given(some_fields)
def test_every_value_is_read_back_as_it_was_given(fields):
    made = Experiment(**fields)
    for short, value in fields.items():
        section, field = FIELDS.get(short, (None, None))
        assert (getattr(getattr(made, section), field) if section else made.name) == value


@law
@given(some_fields, some_fields)
def test_replace_changes_what_it_is_told_and_nothing_else(first, second):
    assert Experiment(**first).replace(**second) == Experiment(**{**first, **second})


@law
@given(some_fields)
def test_short_names_sections_and_dotted_names_say_the_same(fields):
    title = {"name": fields.pop("name")} if "name" in fields else {}
    dotted = {".".join(FIELDS[short]): value for short, value in fields.items()}
    tables = {}
    for short, value in fields.items():
        section, field = FIELDS[short]
        tables.setdefault(section, {})[field] = value
    assert Experiment(**title, **fields) == Experiment(**title, **dotted) == Experiment(**title, **tables)


def test_short_names_are_unique_and_none_is_forgotten():
    assert len(FIELDS) == sum(len(section.model_fields) for section in SECTIONS.values())
    assert not {"name", *SECTIONS} & set(FIELDS) - {"model", "data"}
    assert set(FIELDS) | {"name"} == set(VALUES)
    assert set(Experiment().flat()) == {"name", *FIELDS}


def test_sections_can_be_given_whole():
    section = experiment.Training(lr=0.3, epochs=7)
    assert Experiment(training=section).training == section
    assert Experiment(lr=0.1).replace(training=section).training == section


def test_later_layers_win():
    assert nested({"lr": 1.0}, {"training": {"lr": 2.0}}, {"training.lr": 3.0})["training"] == {"lr": 3.0}
    assert nested({"training": {"lr": 2.0, "epochs": 3}}, {"lr": 1.0})["training"] == {"lr": 1.0, "epochs": 3}


def test_changes_win_over_the_file(tmp_path):
    Experiment(lr=0.1, epochs=9).save(tmp_path / "x.toml")
    loaded = Experiment.load(tmp_path / "x.toml", lr=0.5, **{"model.name": "mlp"})
    assert (loaded.training.lr, loaded.training.epochs, loaded.model.name) == (0.5, 9, "mlp")


def test_a_byte_order_mark_is_no_content(tmp_path):
    (tmp_path / "x.toml").write_bytes(b"\xef\xbb\xbfepochs = 9")
    assert Experiment.load(tmp_path / "x.toml").training.epochs == 9


@looped("target", [Experiment(), *(getattr(Experiment(), name) for name in SECTIONS)])
def test_nothing_can_be_assigned(target):
    for field in type(target).model_fields:
        with pytest.raises(pydantic.ValidationError, match="frozen"):
            setattr(target, field, getattr(target, field))


def test_options_are_no_one_elses():
    mine = {"inner": [1, 2]}
    made = Experiment(model_options=mine)
    mine["inner"].append(3)
    Experiment().model.options["left"] = 1
    assert made.model.options == {"inner": [1, 2]}
    assert Experiment().model.options == {}


def test_activations_are_those_of_the_networks():
    assert choices("activation") == list(ACTIVATIONS)


def test_a_device_of_torch_is_taken_by_its_name():
    assert Experiment(device=torch.device("cuda", 1)).machine.device == "cuda:1"


def test_other_names_point_to_fields():
    assert set(experiment_fields.FIELD_ALIASES.values()) <= set(FIELDS)
    assert not set(experiment_fields.FIELD_ALIASES) & {*FIELDS, *SECTIONS}


@looped(
    ("fields", "message"),
    [
        ({"learning_rate": 0.1}, "training"),
        ({"epoch": 3}, "training"),
        ({"num_workers": 2}, "parallel"),
        ({"shuffle": True}, "shuffled"),
        ({"nodes": 3}, "parallel"),
        ({"trainin": {}}, "trainin"),
        ({"zzz": 1}, "tenfold schema"),
        ({"training.lrr": 1}, "training"),
        ({"self": 1}, "self = 1: unknown field"),
        ({"optimizer": "sdg"}, "sgd"),
        ({"strategy": 3}, "parallel.strategy: should be a name"),
        ({"activation": "rleu"}, "relu"),
        ({"epochs": 0}, "training.epochs"),
        ({"epochs": 2.5}, "training.epochs"),
        ({"epochs": True}, "training.epochs"),
        ({"batch_size": 2**63}, "training.batch_size"),
        ({"epochs": 16**5000}, "training.epochs"),
        ({"lr": "fast"}, "training.lr"),
        ({"lr": float("nan")}, "training.lr"),
        ({"lr": -1.0}, "training.lr"),
        ({"sync_every": 0}, "parallel.sync_every"),
        ({"sync_every": "epochs"}, "parallel.sync_every"),
        ({"sync_every": "epoch", "local_after": 3}, "local_after"),
        ({"dropout": 1.0}, "model.dropout"),
        ({"hidden": [0]}, "model.hidden"),
        ({"hidden": 64}, "model.hidden"),
        ({"name": 3}, "name = 3: should be text"),
        ({"name": "a\nb", "x": 1}, "x = 1: unknown field"),
        ({"device": "\ud800"}, "machine.device"),
        ({"training": 3, "lr": 0.1}, "dictionary"),
        (
            {"model": "lenet"},
            "lenet5",
        ),
        ({"data": "mnits"}, "mnist"),
        ({"loss": "mes"}, "mse"),
        ({"loss": 3}, "package.module"),
        ({"metrics": ["acuracy"]}, "accuracy"),
        (
            {"data": {"name": False}},
            "package.module",
        ),
        ({"model": [3]}, "model.name"),
        ({"model": 3}, "package.module"),
        ({"shards": "fractions", "workers": 2}, "fractions"),
        ({"shards": "fractions", "workers": 2, "fractions": [0.5, 0.4]}, "add up to 0.9; they must add up to 1"),
        ({"model_options": {"f": print}}, "options"),
        ({"model_options": {"f": float("inf")}}, "model.options"),
        ({"model_options": {"f": [None]}}, "model.options"),
    ],
)
def test_what_is_wrong_is_said_with_its_place_and_what_would_be_right(fields, message):
    assert message in refusal(**fields)


def test_what_is_neither_text_nor_object_is_refused_once():
    assert refusal(model=None).startswith("model.name = None: should be a name or a Python object; does the function")


def test_each_wrong_field_gets_a_line_and_long_values_are_cut():
    lines = refusal(epochs=0, lr="x" * 500, zzz=1).splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) < 150


def test_a_value_with_line_breaks_stays_on_one_line():
    assert refusal(optimizer="a\nb\x1b[31m").splitlines() == [refusal(optimizer="a\nb\x1b[31m")]


def test_the_file_is_named_in_every_line(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text("epochs = 0\nzzz = 1")
    with pytest.raises(ExperimentError) as caught:
        Experiment.load(path)
    assert [line.startswith(f"{path}: ") for line in str(caught.value).splitlines()] == [True, True]


def test_files_that_cannot_be_read_are_explained(tmp_path):
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "broken.toml").write_text("lr = ")
    for name, message in [
        ("none.toml", "there is no file .*none.toml; `tenfold init .*none.toml` writes one"),
        ("", "cannot be read: Is a directory"),
        ("bytes.toml", "is not a text file in UTF-8"),
        ("broken.toml", "is not valid TOML: Invalid value .at end of document."),
    ]:
        with pytest.raises(ExperimentError, match=message):
            Experiment.load(tmp_path / name)


def test_a_cluster_is_taken_as_a_value_a_table_or_a_path(tmp_path):
    cluster = Cluster.of(2, "wifi")
    one = Experiment(cluster=cluster, link=Link(latency=0.1, bandwidth=1e6))
    assert one == Experiment(**one.model_dump(mode="json"))
    assert one == Experiment().replace(cluster=one.machine.cluster, link={"latency": 0.1, "bandwidth": 1e6})
    assert Cluster(**one.machine.cluster) == cluster
    assert Experiment(cluster=tmp_path / "edge.toml").machine.cluster == str(tmp_path / "edge.toml")


@looped(
    ("fields", "expected"),
    [
        ({"epochs": np.int64(4)}, 4),
        ({"training": {"epochs": np.int32(4)}}, 4),
        ({"training.epochs": np.array(4)}, 4),
        ({"lr": np.float32(0.5)}, 0.5),
        ({"hidden": np.array([3, 4])}, (3, 4)),
        ({"hidden": [np.int64(3), 4]}, (3, 4)),
        ({"batchnorm": np.bool_(True)}, True),
        ({"model_options": {"width": np.int64(3), "sides": (1, 2)}}, {"width": 3, "sides": [1, 2]}),
    ],
)
def test_numbers_from_numpy_are_taken(fields, expected):
    made = Experiment(**fields)
    given_values = [value for value in made.flat().values() if value is not None]
    assert (list(expected) if isinstance(expected, tuple) else expected) in given_values
    assert Experiment(**json.loads(made.model_dump_json())) == made


@law
@given(st.sampled_from([own_loss, lambda: 1, 3, (1, 2)]), st.sampled_from([own_loss, lambda: 1, 3]))
def test_a_given_object_equals_only_itself(one, other):
    assert PythonObject(one) == PythonObject(one)
    assert hash(PythonObject(one)) == hash(PythonObject(one))
    assert (PythonObject(one) == PythonObject(other)) == (one is other)
    assert PythonObject(own_loss) != own_loss


def main_function():
    """Stands for a function of the script that was started."""


main_function.__module__ = "__main__"


@functools.wraps(own_loss)
def wrapped_loss(outputs, targets):
    return own_loss(outputs, targets)


@looped(
    ("value", "reference"),
    [
        (own_loss, f"{__name__}:own_loss"),
        (functional.mse_loss, "torch.nn.functional:mse_loss"),
        (Makers, f"{__name__}:Makers"),
        (Makers.small, f"{__name__}:Makers.small"),
        (Makers().bound, "<bound>"),
        (main_function, "<main_function>"),
        (wrapped_loss, "<own_loss>"),
        (lambda: 1, "<lambda>"),
        (functools.partial(own_loss), "<partial>"),
        ((1, 2), "<tuple>"),
    ],
)
def test_a_reference_is_a_path_only_where_importing_it_gives_the_object(value, reference):
    assert repr(PythonObject(value)) == reference
    if PythonObject(value).import_path is None:
        assert Experiment(data=value).flat()["data"] == reference
    else:
        from tenfold.common.imports import resolve

        assert resolve(reference, "thing") == value


def test_a_name_given_to_a_metric_is_not_lost_to_its_path():
    assert repr(PythonObject(own_loss, "error")) == "<error>"
    assert Experiment(metrics={"error": own_loss}).flat()["metrics"] == ["<error>"]
    assert [metric.name for metric in Experiment(metrics={"error": own_loss}).training.metrics] == ["error"]


def test_objects_can_be_given_and_are_kept_as_they_are():
    parts = {"train": ([1], [2]), "test": ([3], [4])}
    made = Experiment(model=Makers, data=parts, loss=own_loss, metrics=[own_loss, "mae"])
    assert made.model.name.value is Makers
    assert made.data.name.value is parts
    assert made.training.loss.value is own_loss
    assert made.training.metrics == (PythonObject(own_loss), "mae")
    assert made.replace(lr=0.3).replace(lr=None) == made


def test_experiments_with_objects_travel_to_other_processes():
    made = Experiment(model=lambda: "built", metrics={"error": main_function}, lr=0.3)
    arrived = pickle.loads(pickle.dumps(made))
    assert arrived.model.name.value() == "built"
    assert arrived.flat() == made.flat()
    plain = Experiment(hidden=[3], model_options={"a": 1})
    assert pickle.loads(pickle.dumps(plain)) == plain


def test_every_field_is_explained():
    for section in SECTIONS.values():
        assert section.__doc__
        for field, info in section.model_fields.items():
            assert info.description, field
            assert info.description.rstrip().endswith((".", ")")), field
            assert all(character in string.printable for character in info.description), field


def test_the_schema_describes_every_field():
    schema = json.loads(json.dumps(Experiment.model_json_schema()))
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == {"name", *SECTIONS}
    for name, section in SECTIONS.items():
        definition = schema["$defs"][schema["properties"][name]["$ref"].removeprefix("#/$defs/")]
        assert definition["additionalProperties"] is False
        assert definition["description"] == section.__doc__
        assert set(definition["properties"]) == set(section.model_fields)
        for field in definition["properties"].values():
            assert field["description"]
            assert "default" in field
            assert {"type", "enum", "anyOf"} & set(field)


def test_the_schema_lists_the_choices():
    properties = Experiment.model_json_schema()["$defs"]["Training"]["properties"]
    assert properties["optimizer"]["anyOf"][0]["enum"] == list(OPTIMIZERS)
    assert properties["epochs"]["exclusiveMinimum"] == 0


def test_who_is_to_blame_is_named(tmp_path):
    sound, unsound = tmp_path / "sound.toml", tmp_path / "unsound.toml"
    sound.write_text("[training]\nepochs = 2\n")
    unsound.write_text("[training]\nepochs = 0\n")
    with pytest.raises(ExperimentError, match=r"^parallel.workers = 0: "):
        Experiment.load(sound, workers=0)
    with pytest.raises(ExperimentError, match=r"unsound.toml: training.epochs = 0: "):
        Experiment.load(unsound, workers=2)


def test_the_first_argument_is_an_experiment():
    changed = Experiment.given(Experiment(lr=0.5), epochs=7)
    assert (changed.training.lr, changed.training.epochs) == (0.5, 7)
    assert Experiment.given(None) == Experiment()
    with pytest.raises(ExperimentError, match="mlp"):
        Experiment.given("mlp")
    with pytest.raises(ExperimentError, match="target_column"):
        Experiment(target="price")


class TestAutomaticWorkers:
    """`workers = "auto"` is a number as soon as there is an experiment."""

    @pytest.fixture(autouse=True)
    def _six_cores(self, monkeypatch):
        monkeypatch.setattr("tenfold.machine.cores.budget", lambda: 6)

    def test_there_is_one_for_each_core_of_this_process(self, tmp_path):
        (tmp_path / "auto.toml").write_text('[parallel]\nworkers = "auto"\n')
        for made in (
            Experiment(workers="auto"),
            Experiment(parallel={"workers": "auto"}),
            Experiment(lr=0.1).replace(workers="auto"),
            Experiment.load(tmp_path / "auto.toml"),
        ):
            assert made.parallel.workers == 6
        assert Parallel(workers="auto").workers == 6

    def test_a_gpu_has_one(self):
        assert Experiment(workers="auto", device="cuda").parallel.workers == 1

    def test_a_launcher_decides(self, monkeypatch):
        for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", "1")
        assert Experiment(workers="auto").parallel.workers == 1

    def test_any_other_word_is_refused(self):
        with pytest.raises(ExperimentError, match="workers"):
            Experiment(workers="many")
