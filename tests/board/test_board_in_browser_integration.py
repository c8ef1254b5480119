"""The board as people use it: a real training is watched in Chromium."""

import os
import subprocess
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from browser import NEEDS_BROWSER, started_browser, widths_that_overflow
from forked import forked_python
from made_runs import FACTS, make_run

from tenfold import __file__ as package
from tenfold.board.race import Contestant, Race
from tenfold.executors.jobs import Job
from tenfold.executors.submitting import forget_job, note_job
from tenfold.experiment import Experiment
from tenfold.runs import Store

TRAIN = ["--model", "engine_models:Unhurried", "--data", "digits", "--epochs", "100000", "--name", "<b>watched</b>"]
TRAIN += ["--set", "limit=200"]
TWINS = FACTS | {"invocation": "one twin"}
SOURCES, MODELS = str(Path(package).parents[1]), str(Path(__file__).parents[1] / "support")

pytestmark = [pytest.mark.timeout(180), *NEEDS_BROWSER]


@contextmanager
def tenfold(*words):
    process = subprocess.Popen(
        [*forked_python(), "-m", "tenfold", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "NO_COLOR": "1", "PYTHONPATH": os.pathsep.join([SOURCES, MODELS])},
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for lr in (0.1, 0.2):
        for seed in (0, 1):
            own = {"metrics": {"loss": 0.3, "balanced_accuracy": 0.9 + seed / 100}} if lr == 0.2 else {}
            make_run(folder, steps_per_epoch=60, epochs=2, lr=lr, seed=seed, workers=2, name=f"lr {lr}", result=own)
    return folder


@pytest.fixture(scope="module")
def address(folder):
    with tenfold("board", "--runs", str(folder), "--port", "0", "--no-open") as server:
        yield server.stdout.readline().split()[-1]


@pytest.fixture(scope="module")
def context(address):
    with started_browser() as browser:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        context.set_default_timeout(30_000)
        yield context


@pytest.fixture
def page(context, address):
    page = context.new_page()
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("dialog", lambda dialog: page.problems.append(dialog.message))
    page.goto(address)
    yield page
    assert page.problems == []
    page.close()


def expect(locator):
    """Wait for what is expected of a part of the page."""
    from playwright.sync_api import expect

    expect.set_options(timeout=30_000)
    return expect(locator)


def rows(page):
    return page.locator("table.runs tbody tr")


def test_runs_are_filtered_grouped_and_compared(page, address):
    assert "token" not in page.url
    rows(page).nth(3).wait_for()
    page.fill("#filter", "lr=0.2")
    expect(rows(page)).to_have_count(2)
    page.fill("#filter", "lr>many")
    page.locator("#filter-problem", has_text="number").wait_for()
    page.fill("#filter", "nothing-like-this")
    page.click("text=Clear the filter")
    expect(rows(page)).to_have_count(4)
    assert "lr" in page.locator("table.runs thead").inner_text()  # the field in which they differ
    page.locator('tr[data-run="1"] .pin').click()
    page.locator(".difference").first.wait_for()
    page.reload()
    page.locator("tr.baseline .difference, tr:not(.baseline) .difference").first.wait_for()
    page.select_option("select", "setting")
    expect(page.locator("tr.grouped")).to_have_count(2)
    assert "±" in rows(page).first.inner_text()
    assert "90.50% ± 0.71" in page.locator("tr.grouped", has_text="lr 0.2").inner_text()
    page.locator("tr.grouped input").first.check()
    page.locator("tr.grouped input").nth(1).check()
    page.click("text=Compare 4 runs")
    page.wait_for_url("**/compare?runs=*")
    page.locator(".chart canvas").first.wait_for()
    assert page.locator(".legend button", has_text="run 1").count() >= 1


def test_groups_show_the_range_of_their_scores_and_keep_measured_and_predicted_times_apart(page, tmp_path):
    space = {"space": {"lr": "0.1:0.2"}, "sampler": "random", "objective": "accuracy", "lower": False}
    facts = {"sweep": space | {"part": "test", "prune": False, "trials": 2}}
    parent = make_run(tmp_path, epochs=1, kind="sweep", metadata=facts)
    for number, lr, accuracy in ((1, 0.1, 0.8), (2, 0.2, 0.9)):
        about = {"trial": {"parent": parent.id, "number": number, "values": {"lr": lr}}}
        make_run(tmp_path, epochs=1, lr=lr, metadata=about, result={"metrics": {"accuracy": accuracy, "loss": 0.3}})
    for engine, seconds in (("auto", 4.0), ("virtual", 6.0)):
        make_run(tmp_path, epochs=1, kind="twin", workers=2, engine=engine, result={"seconds": seconds}, metadata=TWINS)
    with tenfold("board", "--runs", str(tmp_path), "--port", "0", "--no-open") as server:
        page.goto(server.stdout.readline().split()[-1])
        sweep = page.locator("tr.grouped", has_text="sweep")
        sweep.wait_for()
        for words in ("2 trials", "80.00% to 90.00%"):
            assert words in sweep.inner_text()
        assert page.locator("tr.grouped", has_text="4.00 s, 6.00 s predicted").count() == 1
        lr = page.locator("thead th", has_text="lr")
        assert lr.count() == 0  # nothing to show while the group is closed
        sweep.locator("button").click()
        expect(rows(page)).to_have_count(5)
        expect(lr).to_have_count(1)


def test_every_page_fits_narrow_and_wide_windows(page, folder):
    sides = [
        Contestant(name=f"side {run}", about="plain PyTorch: DataLoader", seconds=9.0, interval=(8.0, 9.5), run=run)
        for run in (1, 2, None)  # the last has not started, so that nothing is predicted
    ]
    Race(title="Race", task="by turns", machine="2 cores", target=0.99, contestants=sides).save(folder)
    origin = page.url.partition("?")[0].rstrip("/")
    paths = ("", "/run/1", "/compare?runs=1,2,3", "/race")
    assert [(path, widths) for path in paths if (widths := widths_that_overflow(page, origin + path))] == []


def test_a_training_is_watched_stopped_and_resumed(page, folder):
    with tenfold("train", *TRAIN, "--runs", str(folder)) as training:
        row = rows(page).filter(has_text="watched")
        row.wait_for()
        assert row.locator("a.title").inner_text() == "<b>watched</b>"
        row.locator("a.title").click()
        page.locator("h1", has_text="watched").wait_for()
        epochs = page.locator('[data-part="epochs"] tbody tr')
        epochs.nth(2).wait_for()
        page.locator(".chart canvas").first.wait_for()
        page.locator(".lanes canvas").wait_for()
        seen = epochs.count()
        epochs.nth(seen).wait_for()
        last = page.locator(".legend .value").first.inner_text()
        expect(page.locator(".legend .value").first).not_to_have_text(last)
        page.locator(".console pre", has_text="accuracy").wait_for()
        page.click("text=Stop")
        page.locator(".facts .interrupted").wait_for()
        assert training.wait(timeout=30) == 130
    number = int(page.url.rpartition("/")[2])
    page.click("button:text-is('Resume')")
    page.locator(".facts .running").wait_for()
    page.click("button:text-is('Stop')")
    page.locator(".facts .interrupted").wait_for()
    assert Store(folder).find(number)["status"] == "interrupted"
    page.click("button:text-is('Delete')")
    page.locator("dialog button:text-is('Delete')").click()
    page.wait_for_url("**/")
    page.locator("#said", has_text=f"Run {number}: removed").wait_for()
    rows(page).nth(3).wait_for()
    assert rows(page).filter(has_text="watched").count() == 0


def test_the_jobs_that_are_under_way_are_shown_while_there_are_any(page, folder):
    (folder / "jobs").mkdir(exist_ok=True)
    job = Job.of(Experiment(model="mlp", data="digits"), "trial", label="<b>trial 3</b>", scope="run 1, trial 3")
    note_job(replace(job, kept_in=str(folder / "jobs" / "a")), "ray")
    page.get_by_role("cell", name="<b>trial 3</b>").wait_for()
    assert "waiting" in page.locator("#jobs").inner_text()
    forget_job(str(folder / "jobs" / "a"))
    page.locator("#jobs").wait_for(state="hidden")
