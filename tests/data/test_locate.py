import warnings
from pathlib import Path

import pytest

from tenfold.data import SOURCES, available, get, load, where
from tenfold.data import sources as idx
from tenfold.data import sources as locate
from tenfold.errors import DataError


@pytest.fixture(autouse=True)
def _a_world_of_its_own(cache, tiny):
    pass


def test_places_are_searched_in_order(cache, put, monkeypatch, tmp_path):
    monkeypatch.setenv("TENFOLD_DATA", str(tmp_path / "own"))
    for folder in (locate.DEBIAN / "tiny", cache, tmp_path / "own", tmp_path / "own" / "tiny"):
        put(folder)
        assert where("tiny") == get("tiny") == folder


@pytest.mark.parametrize("gz", [True, False])
def test_plain_and_gzipped_files_are_equally_good(cache, put, gz, mirror):
    put(cache, gz=gz)
    assert len(load("tiny").train) == 10
    assert mirror.asked == []


def test_a_folder_that_lacks_a_file_is_passed_over(cache, put, monkeypatch, tmp_path):
    monkeypatch.setenv("TENFOLD_DATA", str(put(tmp_path / "own", only=("tiny-x",))))
    put(cache)
    assert get("tiny") == cache


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-6])


def alter(path: Path) -> None:
    path.write_bytes(idx.compress(idx.content(path, 10**6)[:-1] + b"?"))


def garble(path: Path) -> None:
    path.write_bytes(b"<html>Please log in to this network</html>")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def bomb(path: Path) -> None:
    path.write_bytes(idx.compress(bytes(10**8)))


@pytest.mark.parametrize("harm", [truncate, alter, garble, empty, bomb])
class TestDamage:
    def test_in_the_cache_is_named_and_fetched_again(self, cache, put, harm, mirror):
        harm(put(cache) / "tiny-y.gz")
        with pytest.warns(UserWarning, match=r"tiny-y\.gz"):
            assert get("tiny") == cache
        assert mirror.asked == ["tiny-y.gz"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert load("tiny").train.targets.tolist() == list(range(10))

    def test_elsewhere_is_named_and_the_next_place_is_used(self, cache, put, harm, mirror, monkeypatch, tmp_path):
        own = put(tmp_path / "own")
        harm(own / "tiny-x.gz")
        damaged = (own / "tiny-x.gz").read_bytes()
        monkeypatch.setenv("TENFOLD_DATA", str(own))
        put(cache)
        with pytest.warns(UserWarning, match=r"own/tiny-x\.gz"):
            assert get("tiny") == cache
        assert mirror.asked == []
        assert (own / "tiny-x.gz").read_bytes() == damaged


def test_the_list_says_what_is_where(cache, put):
    found = {listed.name: listed.where for listed in available() if not SOURCES[listed.name].make}
    assert found == {"digits": None, "mnist": None, "fashion-mnist": None, "tiny": None}
    put(cache)
    assert ("tiny", "a tiny set", cache) in available()


def test_a_source_without_files_needs_no_folder():
    assert get("digits") is None
    assert where("digits") is None


@pytest.mark.parametrize("ask", [get, where, load])
def test_an_unknown_name_lists_the_known(ask):
    with pytest.raises(DataError, match="mnist"):
        ask("minst")


def test_the_users_cache_folder_is_the_default(monkeypatch):
    monkeypatch.delenv("TENFOLD_CACHE")
    assert locate.cache().parts[-2:] == ("tenfold", "data")
