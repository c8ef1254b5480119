import base64
import re
from html.parser import HTMLParser

import pytest
from made_runs import FACTS, make_run

from tenfold.errors import StoreError
from tenfold.reports import exports as export
from tenfold.reports.comparison import Comparison
from tenfold.reports.pages import run_pages as report

VOID = {"meta", "input", "br", "wbr", "link", "img", "hr"}
UPLOT = "https://github.com/leeoniya/uPlot"  # in the comment that names its licence
EVIL = "<script>alert('x')</script> & \"quoted\""


class Page(HTMLParser):
    """Checks that tags match, and collects what a browser would fetch, run or show."""

    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.ids, self.texts, self.classes = [], {}, [], [], set()
        self.addresses, self.scripts = [], 0
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)
        found = dict(attributes)
        self.scripts += tag == "script" and found.get("type") != "application/json"
        self.addresses += [value for name, value in attributes if name in ("src", "href", "srcset", "action", "data")]
        self.ids += [found["id"]] if "id" in found else []
        self.classes |= set(found.get("class", "").split())
        if "download" in found:
            self.links[found["download"]] = found["href"]

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return " ".join(self.texts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def run(folder):
    return make_run(folder, steps_per_epoch=100, warnings=(f"beware of {EVIL}",), lr=0.1, name=EVIL)


@pytest.fixture(scope="module")
def page(run):
    return Page(report.render_report([run]))


def test_a_page_holds_what_came_out(page):
    for expected in ("96.", "test accuracy", "measured", "166,667", "61,706", "Epochs", "Example CPU", "tenfold train"):
        assert expected in page.text


def test_a_page_fetches_nothing(run, page):
    text = report.render_report([run])
    assert all(address.startswith(("data:", "#")) for address in page.addresses)
    assert "@import" not in text
    assert re.findall(r"url\((?!#)", text) == []
    assert set(re.findall(r"https?://[^\s\"']*", text)) <= {"http://www.w3.org/2000/svg", UPLOT}
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text


def test_titles_are_text_whatever_they_hold(run, page):
    assert page.scripts == 1
    assert EVIL in page.text
    assert "<script>alert" not in report.render_report([run])


def test_ids_are_unique(page):
    assert len(page.ids) == len(set(page.ids))


def test_downloads_hold_the_numbers(run, page):
    read = {name: base64.b64decode(link.split(",", 1)[1]).decode() for name, link in page.links.items()}
    assert read == {
        f"tenfold-run-{run.id}.csv": export.to_csv([run]),
        f"tenfold-run-{run.id}.json": export.to_json([run]),
    }


def test_several_runs_are_compared(folder):
    runs = [make_run(folder, steps_per_epoch=60, lr=lr, seed=seed) for lr, seed in ((0.1, 0), (0.2, 0), (0.2, 1))]
    page = Page(report.render_report(runs))
    for expected in (
        "2 settings compared",
        "Settings",
        "±",
        "lr 0.2",
        "3 runs, all finished",
        "mean ± standard deviation",
    ):
        assert expected in page.text
    assert len(page.ids) == len(set(page.ids))
    name = f"tenfold-runs-{runs[0].id}-{runs[1].id}-{runs[2].id}"
    assert list(page.links) == [f"{name}-table.csv", f"{name}.csv", f"{name}.json"]
    assert "Scaling" not in page.text


def test_the_same_experiment_twice_is_said(folder):
    assert (
        "All runs have the same experiment."
        in Page(report.render_report([make_run(folder, empty=True) for _ in range(2)])).text
    )


@pytest.mark.parametrize("status", ["failed", "interrupted", "running"])
@pytest.mark.parametrize("empty", [True, False])
def test_runs_that_did_not_finish_say_so(folder, status, empty):
    run = make_run(
        folder, status=status, empty=empty, epochs_done=1, steps_per_epoch=60, error="it <b>broke</b>", metadata={}
    )
    page = Page(report.render_report([run]))
    assert status in page.classes
    assert {"failed": "it <b>broke</b>", "interrupted": f"tenfold resume {run.id}", "running": "still"}[
        status
    ] in page.text
    assert ("nothing was measured" in page.text) == (empty and status != "running")


def test_writing_gives_one_file(run, tmp_path):
    path = report.write_report([run], tmp_path / "new" / "report.html")
    assert [item.name for item in path.parent.iterdir()] == ["report.html"]
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_no_run_and_no_place_are_explained(run, tmp_path):
    with pytest.raises(StoreError, match="no run to report"):
        report.write_report([], tmp_path / "report.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"report\.html"):
        report.write_report([run], tmp_path / "file" / "report.html")


def test_timelines_name_their_own_run(folder):
    runs = [make_run(folder, empty=True, lr=0.3), make_run(folder, steps_per_epoch=40, lr=0.4)]
    assert f"lr 0.4 (run {runs[1].id}): the fastest and the slowest." in report.render_report(runs)


def grid(folder):
    common = {"steps_per_epoch": 30, "epochs": 1}
    yield from (make_run(folder, **common, workers=1, seed=seed) for seed in (0, 1))
    for strategy in ("allreduce", "ring", "butterfly", "gossip"):
        for every in (1, 4, 16):
            for seed in (0, 1):
                fields = {"strategy": strategy, "sync_every": every, "seed": seed, "workers": 2}
                yield make_run(folder, **common, **fields)


def test_a_grid_speaks_of_settings(tmp_path, recwarn):
    runs = list(grid(tmp_path))
    text = report.render_report(Comparison(runs, {"9 workers, seed 0": "too many", "9 workers, seed 1": "too many"}))
    page = Page(text)
    assert "13 settings compared" in page.text
    for expected in ("Scaling", "Speed and quality", "8 of 13 settings are drawn", "All 26 runs"):
        assert expected in page.text
    assert "9 workers, seed 0 | 9 workers, seed 1: too many" in page.text
    assert "ideal: number of workers" in page.text
    assert len(page.ids) == len(set(page.ids))
    assert list(recwarn) == []


def test_a_warning_is_shown_once_with_the_runs_that_gave_it(tmp_path):
    runs = [make_run(tmp_path, steps_per_epoch=30, epochs=1, seed=seed, warnings=("mind this",)) for seed in (0, 1)]
    text = report.render_report(runs)
    assert text.count('class="note warning"') == 1
    assert "Warning in run 1, 2" in text


def test_a_machine_is_shown_once_however_much_memory_was_free(folder):
    machines = [{**FACTS["machine"], "memory": {"total": 2**34, "available": free}} for free in (2**30, 2**31)]
    runs = [make_run(folder, empty=True, metadata={**FACTS, "machine": machine}) for machine in machines]
    assert report.render_report(runs).count("Details of the machine") == 1
