import json
from dataclasses import replace

import pytest
from board_client import BoardClient
from made_runs import epoch_events, make_crossval, make_run, started

from tenfold.board import feed
from tenfold.board.feed import Position
from tenfold.board.security import Access
from tenfold.board.server import Board
from tenfold.errors import StoreError
from tenfold.executors.jobs import Job
from tenfold.executors.submitting import note_job
from tenfold.experiment import Experiment
from tenfold.prediction.ledger import Ledger, Score
from tenfold.prediction.script_simulation import Script
from tenfold.runs import Recorder, Store
from tenfold.runs.recorder import CONSOLE_FILE, ConsoleFile
from tenfold.runs.store import SCRIPT, one_invocation

HERE = "http://127.0.0.1"


@pytest.fixture
def folder(tmp_path):
    for lr in (0.1, 0.2):
        for seed in (0, 1):
            make_run(tmp_path, steps_per_epoch=30, epochs=1, lr=lr, seed=seed, workers=2)
    return tmp_path


@pytest.fixture
def board(folder):
    return Board(Store(folder), Access())


@pytest.fixture
def client(board):
    client = BoardClient(board.app(), base_url=HERE)
    client.get("/", params={"token": board.access.token})
    client.headers = {"origin": HERE, "x-tenfold-action": board.access.action_token}
    return client


def running(folder, **fields):
    """Return a run that this process is training, as far as the store knows."""
    experiment = Experiment(epochs=4, **fields)
    store = Store(folder)
    number = store.create(experiment, kind="train", metadata={})
    recorder = Recorder(store, number)
    recorder(started(experiment, 50))
    return experiment, number, recorder


def test_the_list_of_runs_says_how_close_predictions_came(client, monkeypatch):
    monkeypatch.setattr(Ledger, "load", Ledger)
    assert "Kendall" not in client.get("/").text
    monkeypatch.setattr(
        Ledger, "load", lambda: Ledger((Score("a", "g", "", 1, 1, 1, 1.5), Score("b", "g", "", 2, 2, 2, 2.5)))
    )
    assert "Kendall&#39;s tau 1.00" in client.get("/").text


def test_a_row_has_the_score_after_each_epoch_also_while_the_run_is_running(client, folder):
    assert client.get("/data/runs").json()["rows"][0]["curve"]
    experiment, number, recorder = running(folder)
    for epoch in (0, 1):
        for event in epoch_events(experiment, epoch, steps_per_epoch=50):
            recorder(event)
    recorder.flush()
    row = next(row for row in client.get("/data/runs").json()["rows"] if row["id"] == number)
    assert len(row["curve"]) == 2
    assert row["curve"][-1] == row["score"]
    assert row["metric"] == "accuracy"


def test_runs_of_one_invocation_are_grouped_also_if_the_command_was_repeated(client, folder, board):
    store = Store(folder)
    for _ in range(2):
        with one_invocation(), one_invocation():
            for _ in range(2):
                store.create(Experiment(), kind="compare", metadata={"command": "tenfold compare --workers 1,2"})
    rows = client.get("/data/runs").json()["rows"]
    groups = [row["invocation"] for row in sorted(rows, key=lambda row: row["id"])]
    assert groups[:4] == [None] * 4
    assert groups[4] == groups[5] != groups[6] == groups[7]


def test_a_script_has_only_the_fields_that_apply_to_it(client, folder, tmp_path):
    path = tmp_path / "own.py"
    path.write_text("")
    experiment = Script.of(path, ["--epochs", "2"], workers=4).experiment
    made = Store(folder).create(experiment, kind=SCRIPT, metadata={})
    rows = client.get("/data/runs").json()["rows"]
    fields = next(row["fields"] for row in rows if row["id"] == made)
    assert (fields["model"], fields["data"], fields["workers"]) == ("own.py", "--epochs 2", "4")
    assert not {"optimizer", "lr", "epochs", "batch_size", "strategy"} & set(fields)


def test_filters_mix_words_and_conditions(client, board):
    board.store.tag(3, "paper")

    def found(text):
        client.get("/data/runs")
        return client.get("/data/filter", params={"q": text}).json()["runs"]

    assert found("lr=0.2") == [3, 4]
    assert found("lr=0.2 seed = 1") == [4]
    assert found("paper") == [3]
    assert found("FINISHED accuracy>1%") == [1, 2, 3, 4]
    assert found("tag=paper nothing-like-it") == []
    wrong = client.get("/data/filter", params={"q": "worker>=4"})
    assert wrong.status_code == 400
    assert "workers" in wrong.text


def test_a_message_holds_only_what_is_new(board, folder):
    board.runs.update()
    position = Position.read("0:0", "", None)
    first = board.feed.news(position)
    assert len(first["list"]["rows"]) == 4
    assert board.feed.news(position) == {}
    board.store.tag(2, "seen")
    changed = board.feed.news(position)["list"]["rows"]
    assert [(row["id"], row["tags"]) for row in changed] == [(2, ["seen"])]


def test_the_page_of_a_run_gets_only_its_own_row(board):
    position = Position.read("0:0", "", None, "3")
    assert [row["id"] for row in board.feed.news(position)["list"]["rows"]] == [3]
    board.store.tag(2, "seen")
    assert board.feed.news(position) == {}


def test_a_run_is_followed_epoch_by_epoch(board, folder):
    experiment, number, recorder = running(folder, name="followed")
    figure = board.watch.figure(board.watch.open(number))
    position = Position.read(None, f"{number}@{figure['position']}", "1")
    board.feed.news(position)
    for epoch in range(2):
        for event in epoch_events(experiment, epoch, steps_per_epoch=50):
            recorder(event)
        recorder.flush()
        news = board.feed.news(position)["runs"][number]
        tested = next(new for new in news["curves"] if (new["name"], new["part"]) == ("accuracy", "test"))
        assert tested["step"] == [50 * (epoch + 1)]
        assert news["progress"]["done"] == epoch + 1
        assert news["progress"]["left"] > 0
        assert f"<td>{epoch + 1}</td>" in news["parts"]["epochs"]
        assert board.feed.news(position) == {}
    recorder.store.restart(number, epoch=1)
    assert board.feed.news(position)["runs"][number]["again"]
    assert max(board.watch.figure(board.watch.open(number))["curves"][0]["step"]) <= 50
    recorder.close(result={}, status="interrupted")
    assert board.feed.news(position)["runs"][number]["status"] == "interrupted"


def test_what_a_run_prints_is_followed_line_by_line(board, folder, client):
    _, number, recorder = running(folder, name="printing")
    console = ConsoleFile(board.watch.open(number).path / CONSOLE_FILE)
    position = Position.read(None, f"{number}@0.0", "1", None, str(number))
    assert "console" not in board.feed.news(position)["runs"][number]
    for text, lines, rest in [("<b>one\n10%", "<b>one\n", "10%"), ("\r20%", "", "20%"), ("\rdone\n", "done\n", "")]:
        console.add(text)
        console.write()
        news = board.feed.news(position)["runs"][number]["console"]
        assert (news["lines"], news["rest"]) == (lines, rest)
    assert board.feed.news(position) == {}
    console.close()
    recorder.close(result={}, status="interrupted")
    assert "<pre>&lt;b&gt;one\ndone\n</pre>" in client.get(f"/run/{number}").text
    assert "&lt;b&gt;one" in client.get(f"/run/{number}.html").text


def test_the_page_of_several_runs_goes_on_without_one_that_was_removed(board, folder):
    experiment, number, recorder = running(folder)
    position = Position.read(None, f"1@0.0,2@0.0,{number}@0.0", "1")
    board.feed.news(position)
    board.actions.remove(2, {"confirmed": True})
    for event in epoch_events(experiment, 0, steps_per_epoch=50):
        recorder(event)
    recorder.flush()
    news = board.feed.news(position)["runs"]
    assert "gone" in news[2]
    assert news[number]["curves"]
    assert "settings" in news[number]["parts"]
    recorder.close(result={}, status="interrupted")


def test_a_run_whose_process_is_gone_is_interrupted_at_the_next_message(board, folder):
    _, number, recorder = running(folder)
    position = Position.read("0:0", "", None)
    statuses = {row["id"]: row["status"] for row in board.feed.news(position)["list"]["rows"]}
    assert statuses[number] == "running"
    recorder.store.release(number)  # as the kernel does when a process dies
    assert [row["status"] for row in board.feed.news(position)["list"]["rows"]] == ["interrupted"]


def test_a_zoom_gets_the_points_of_its_stretch_only(client):
    curves = client.get("/data/run/1/curves", params={"from": 10, "to": 20}).json()["curves"]
    steps = next(curve["step"] for curve in curves if (curve["name"], curve["part"]) == ("loss", "train"))
    assert steps
    assert min(steps) >= 0
    assert max(steps) <= 40
    lanes = client.get("/data/run/1/lanes", params={"from": 1.2, "to": 1.25}).json()["lanes"]
    assert set(lanes["worker"]) == {0, 1}
    assert all(at / 1e6 < 1.25 for at in lanes["at"])


def test_the_pages_of_runs_comparisons_and_cross_validations_open(client, folder):
    make_crossval(folder)
    assert "lenet5 on mnist" in client.get("/run/1").text
    assert "2 settings compared" in client.get("/compare", params={"runs": "1,2,3"}).text
    assert "Cross-validation of" in client.get("/run/5").text
    assert client.get("/run/1.html").text.startswith("<!doctype html>")
    assert json.loads(client.get("/run/1.json").text)
    assert json.loads(client.get("/run/1.trace.json").text)["traceEvents"]
    versus = client.get("/data/run/1/versus/3").json()["versus"]
    assert '<th class="words" scope="row">lr</th><td class="words">0.1</td><td class="words">0.2</td>' in versus
    assert "training time" in versus
    assert client.get("/run/99").status_code == 400


def test_runs_are_renamed_tagged_noted_and_removed(client, board, folder):
    def act(action, **given):
        return client.post(f"/run/2/{action}", json=given)

    assert act("rename", title="A better name").status_code == 200
    assert board.store.find(2)["title"] == "A better name"
    assert (folder / "2-A_better_name" / "experiment.toml").exists()
    assert act("tag", tags="paper, best").status_code == 200
    assert act("tag", tags="best").status_code == 200
    assert act("note", note="kept").status_code == 200
    record = board.store.find(2)
    assert (record["tags"], record["note"]) == (("best",), "kept")
    assert "confirmed" in act("remove").text
    assert act("remove", confirmed=True).json()["done"].endswith("trash/2-A_better_name")
    with pytest.raises(StoreError):
        board.store.find(2)
    assert act("rename", title="x").status_code == 400
    assert act("fly").status_code == 404


def test_a_run_that_diverged_is_not_resumed(client, folder):
    _, number, recorder = running(folder)
    recorder.close(result={"diverged": True}, status="failed")
    assert "diverged" in client.post(f"/run/{number}/resume", json={}).text


def test_only_what_makes_sense_can_be_done(client, board, folder):
    _, number, recorder = running(folder)
    refused = {
        "stop": "run 1 is not running; it is finished",
        "resume": "run 1 is finished; there is nothing to resume",
    }
    for action, sentence in refused.items():
        assert client.post(f"/run/1/{action}", json={}).text == sentence
    assert "still running" in client.post(f"/run/{number}/rename", json={"title": "x"}).text
    assert "still running" in client.post(f"/run/{number}/remove", json={"confirmed": True}).text
    recorder.close(result={}, status="interrupted")


def test_the_list_shows_the_jobs_that_are_under_way(board, folder, monkeypatch):
    monkeypatch.setattr(feed, "JOBS_SECONDS", 0.0)
    position = Position.read("0:0", None, None)
    assert board.feed.news(position)["jobs"] == []
    assert "jobs" not in board.feed.news(position)
    job = Job.of(Experiment(model="mlp", data="digits"), "trial", label="trial 3", scope="run 1, trial 3")
    (folder / "jobs").mkdir()
    note_job(replace(job, kept_in=str(folder / "jobs" / "a")), "ray")
    [shown] = board.feed.news(position)["jobs"]
    assert (shown["label"], shown["run"], shown["state"]) == ("trial 3", 1, "waiting")
