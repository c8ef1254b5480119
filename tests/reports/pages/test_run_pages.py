import base64
import re
from html.parser import HTMLParser

import pytest
from made_runs import make_run

from tenfold.errors import StoreError
from tenfold.reports import exports as export
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
