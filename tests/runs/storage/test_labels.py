import pytest
from made_store import new_run

from tenfold.api.open_run import load_model
from tenfold.errors import StoreError
from tenfold.runs import Run, Store


def test_tags_and_a_note_are_kept_with_the_run(tmp_path):
    store, number = new_run(tmp_path)
    run = Run(store, store.find(number), build=load_model)
    run.tag("paper", "baseline", "paper")
    run.set_note("with the fan on")
    run.untag("baseline", "never had")
    assert run.tags == ("paper",)
    again = Run(Store(tmp_path), Store(tmp_path).runs()[0], build=load_model)
    assert (again.tags, again.note) == (("paper",), "with the fan on")
    assert (again.summary()["tags"], again.summary()["note"]) == (["paper"], "with the fan on")
    run.set_note("")
    assert Store(tmp_path).find(number)["note"] == ""


@pytest.mark.parametrize("name", ["", "two words", "a,b", "a=b", "-x", "x" * 61])
def test_a_tag_that_no_filter_could_name_is_refused(tmp_path, name):
    store, number = new_run(tmp_path)
    with pytest.raises(StoreError, match="is not a tag; write up to 60 letters"):
        store.tag(number, name)
