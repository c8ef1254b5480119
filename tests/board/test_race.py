import html
from dataclasses import replace

import pytest
from board_client import BoardClient
from made_runs import make_run

from tenfold.board.race import PROFILE, Contestant, Race, Scaling, race_content
from tenfold.board.security import Access
from tenfold.board.server import Board
from tenfold.errors import ExperimentError, StoreError
from tenfold.machine.metadata import profile_path
from tenfold.runs import Store

HERE = "http://127.0.0.1"


@pytest.fixture
def race(tmp_path):
    contestants = []
    for seconds, accuracy in ((8.0, 0.992), (4.0, 0.991), (2.0, 0.993)):
        result = {"seconds": seconds, "metrics": {"accuracy": accuracy, "loss": 0.1}}
        run = make_run(tmp_path, steps_per_epoch=30, epochs=1, result=result)
        name = f"side {len(contestants)}"
        expected = {"seconds": 1.5 * seconds, "interval": (seconds, 2 * seconds)}
        contestants.append(Contestant(name=name, about="<b>plain</b>", run=run.id, **expected))
    race = Race(title="Race", task="", machine="", target=0.99, contestants=contestants)
    race.save(tmp_path)
    return race


def runs_of(race, folder):
    store = Store(folder)
    return {contestant.run: Board(store, Access()).watch.open(contestant.run) for contestant in race.contestants}


def test_a_race_is_read_as_it_was_saved(race, tmp_path):
    again = Race.load(tmp_path)
    assert [contestant.name for contestant in again.contestants] == ["side 0", "side 1", "side 2"]
    assert again.winner(runs_of(again, tmp_path)).id == 3


def test_who_misses_the_target_does_not_win_and_has_no_speedup(race, tmp_path):
    runs = runs_of(race, tmp_path)
    runs[3].result["metrics"]["accuracy"] = 0.98
    assert race.winner(runs).id == 2
    slow, fast = (row[1][-2] for row in race_content(race, runs)["table"]["rows"][1:])
    assert (slow, fast) == ("2.00", "")


def test_the_page_has_predicted_and_measured_times_side_by_side_and_no_markup_of_names(race, tmp_path):
    client = BoardClient(Board(Store(tmp_path), Access("0123456789abcdef")).app(), base_url=HERE)
    assert client.get("/race", params={"token": "0123456789abcdef"}).status_code == 200
    news = client.get("/data/race").json()
    part = news["parts"]["race"]
    assert news["over"] is True
    assert part.index("12.0 s [8.00-16.0]") < part.index("8.00 s<")
    assert "<b>plain" not in part
    flags = [line for line in news["plots"]["race"]["lines"] if line["markers"]]
    assert [flag["x"] for flag in flags] == [[12.0], [6.0], [3.0]]


@pytest.mark.parametrize(("link", "workers"), [("string", 4), ("10gbe", 0), ("10gbe", 65)])
def test_unknown_links_and_numbers_are_refused(race, link, workers, tmp_path):
    with pytest.raises(ExperimentError, match="64"):
        Scaling(tmp_path).curve(race, link, workers)


def test_a_race_of_somebody_else_runs_no_code(race, tmp_path, monkeypatch):
    marker = tmp_path / "ran"
    (tmp_path / "planted.py").write_text(f"open({str(marker)!r}, 'w')\nfrom torch.nn import Identity as Net\n")
    monkeypatch.chdir(tmp_path)
    replace(race, experiment={"model": {"name": "planted:Net"}, "data": {"name": "digits"}}).save(tmp_path)
    with pytest.raises(ExperimentError, match="planted"):
        Scaling(tmp_path).curve(Race.load(tmp_path), "10gbe", 2)
    assert not marker.exists()


@pytest.mark.parametrize("content", ["", "[]", '{"title": 1}', '{"contestants": {}}'])
def test_a_damaged_race_is_said(content, tmp_path):
    (tmp_path / "race.json").write_text(content)
    with pytest.raises(StoreError, match=r"race\.json"):
        Race.load(tmp_path)


def test_no_speedup_over_one_that_missed_the_target(race, tmp_path):
    runs = runs_of(race, tmp_path)
    runs[1].result["metrics"]["accuracy"] = 0.98
    assert [row[1][-2:] for row in race_content(race, runs)["table"]["rows"]] == [["", ""], ["", ""], ["", "2.00"]]


def test_speedups_on_a_busy_machine_are_marked(race, tmp_path, monkeypatch):
    monkeypatch.setattr("tenfold.board.race.load_doubts_of", lambda runs: ("load",) if runs else ())
    content = race_content(race, runs_of(race, tmp_path))
    client = BoardClient(Board(Store(tmp_path), Access("0123456789abcdef")).app(), base_url=HERE)
    client.get("/race", params={"token": "0123456789abcdef"})
    assert content["doubts"][0].split(":")[0] in html.unescape(client.get("/data/race").json()["parts"]["headline"])
    assert content["table"]["rows"][2][1][-1] == "2.00 !"


def test_a_race_is_over_when_one_has_failed_and_no_other_will_start(race, tmp_path):
    runs = runs_of(race, tmp_path)
    begun = {1: runs[1]}
    assert not race.is_over(begun)
    Store(tmp_path).update(1, result={}, status="interrupted")
    assert race.is_over({1: runs_of(race, tmp_path)[1]})


def test_predictions_come_from_the_profile_beside_the_race_in_every_thread(race, tmp_path, monkeypatch):
    seen = []

    def forecast_grid(*_):
        seen.append(profile_path())
        raise ExperimentError("enough")

    monkeypatch.setattr("tenfold.board.race.forecast_grid", forecast_grid)
    board = Board(Store(tmp_path), Access("0123456789abcdef"))
    experiment = {"model": {"name": "lenet5"}, "data": {"name": "digits"}}
    replace(race, experiment=experiment).save(tmp_path)
    client = BoardClient(board.app(), base_url=HERE)
    client.get("/race", params={"token": "0123456789abcdef"})
    client.get("/data/race/scaling", params={"workers": "4", "link": "10gbe"})
    assert seen == [tmp_path / PROFILE]
    assert profile_path() != seen[0]
