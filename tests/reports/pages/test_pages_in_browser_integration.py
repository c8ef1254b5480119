import csv
import io
from pathlib import Path

import pytest
from browser import NEEDS_BROWSER, started_browser
from made_runs import made_folds, made_prediction, make_crossval, make_run, make_virtual_run

import tenfold
from tenfold.board.race import Contestant, Race, Scaling, render_race
from tenfold.experiment import Experiment
from tenfold.papers.recipe import load
from tenfold.papers.recipe_result import RecipeResult, ResultRow
from tenfold.reports import exports as export
from tenfold.reports.comparison import Comparison
from tenfold.reports.forecast import Forecast, ScalingStudy, Twin
from tenfold.reports.pages import run_pages as report

pytestmark = [pytest.mark.timeout(90), *NEEDS_BROWSER]


@pytest.fixture(scope="module")
def only_page():
    """A page that visits one address after another: making a page takes longer than that."""
    with started_browser() as browser:
        page = browser.new_page()
        page.problems, page.requests = [], []
        page.on("console", lambda message: page.problems.append(message.text))
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("dialog", lambda dialog: page.problems.append(dialog.message))
        page.on("request", lambda request: page.requests.append(request.url))
        yield page


@pytest.fixture
def visit(only_page):
    """Look at an address as one who has never been there."""

    def visit(address, width=1200, scheme="light"):
        only_page.evaluate("try { localStorage.clear(); sessionStorage.clear() } catch {}")
        only_page.goto("about:blank")
        only_page.problems.clear()
        only_page.requests.clear()
        only_page.emulate_media(color_scheme=scheme)
        only_page.set_viewport_size({"width": width, "height": 900})
        only_page.goto(address)
        return only_page

    return visit


@pytest.fixture
def visit_well(visit):
    """Look at an address that must load without a word on the console and fit the window."""

    def visit_well(address, width, scheme="light"):
        page = visit(address, width, scheme)
        assert page.problems == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        return page

    return visit_well


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(
        tmp_path_factory.mktemp("runs"), steps_per_epoch=60, name="seen <script>alert(1)</script>", workers=2
    )


@pytest.fixture(scope="module")
def address(run):
    return report.write_report([run], run.store.folder / "report.html").as_uri()


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_the_page_loads_quietly_and_alone(visit, address):
    page = visit(address)
    assert page.problems == []
    assert page.requests == [address]
    assert page.locator("h1").inner_text() == "seen <script>alert(1)</script>"
    assert page.locator(".chart canvas >> visible=true").count() == 2
    assert page.locator(".lanes canvas >> visible=true").count() == 1
    assert page.locator(".bar .part").count() == 7


def test_light_and_dark_differ_and_the_button_switches(visit, address):
    seen = {}
    for scheme in ("light", "dark"):
        page = visit(address, scheme=scheme)
        seen[scheme] = [background(page)]
        for _ in range(2):
            page.click("#theme")
            seen[scheme].append(background(page))
    light, dark = seen["light"][0], seen["dark"][0]
    assert light != dark
    assert seen == {"light": [light, dark, light], "dark": [dark, light, dark]}


def test_curves_switch_zoom_smooth_and_toggle(visit, address):
    page = visit(address)
    loss = page.locator(".chart").first
    assert "loss by epoch" in loss.get_attribute("aria-label")
    page.click("text=by training time")
    assert "loss by training time (s, measured)" in loss.get_attribute("aria-label")
    page.click("text=log y")
    page.locator("input[type=range]").fill("0.5")
    box = loss.bounding_box()
    page.mouse.move(box["x"] + 150, box["y"] + 80)
    page.mouse.down()
    page.mouse.move(box["x"] + 250, box["y"] + 80, steps=3)
    page.mouse.up()
    assert page.locator("text=Reset zoom").is_visible()
    loss.press("0")
    assert not page.locator("text=Reset zoom").is_visible()
    name = page.locator(".legend button").first
    name.click()
    assert name.get_attribute("aria-pressed") == "false"
    assert page.problems == []


def test_the_download_is_the_csv(visit, address, run):
    page = visit(address)
    with page.expect_download() as coming:
        page.click("a[download$='.csv']")
    saved = coming.value
    assert saved.suggested_filename == f"tenfold-run-{run.id}.csv"
    text = Path(saved.path()).read_text()
    assert text == export.to_csv([run])
    assert len(list(csv.DictReader(io.StringIO(text)))) == len(export.measurement_rows(run))


def test_nothing_sticks_out_sideways(visit_well, address):
    for width in (360, 800):
        visit_well(address, width)


def test_a_comparison_loads_quietly_and_fits(visit_well, tmp_path):
    common = {"steps_per_epoch": 30, "epochs": 1}
    runs = [make_run(tmp_path, **common)]
    for strategy in ("allreduce", "hopping-ring", "parameter-server"):
        runs += [make_run(tmp_path, **common, workers=2, strategy=strategy, sync_every=every) for every in (1, 16)]
    address = report.write_report(runs, tmp_path / "page.html").as_uri()
    for width in (400, 1200):
        page = visit_well(address, width)
        assert page.locator("table.settings tbody tr").count() == len(runs)
        assert page.locator("[data-plot] .chart canvas >> visible=true").count() == 3
        assert page.locator("[data-panel=curves] .chart canvas >> visible=true").count() == 2


CUT = """[...document.querySelectorAll("table, svg, canvas, .legend li, .tip")]
    .map(one => one.getBoundingClientRect()).filter(box => box.width && box.right > innerWidth).length"""


def test_on_a_phone_nothing_is_cut_and_the_accuracy_is_visible(visit, tmp_path):
    common = {"steps_per_epoch": 30, "epochs": 1}
    runs = [make_run(tmp_path, **common), make_run(tmp_path, **common, workers=2, strategy="hopping-ring")]
    page = visit(report.write_report(runs, tmp_path / "page.html").as_uri(), 420)
    assert page.evaluate(CUT) == 0
    assert page.locator("table.settings td[data-name='test accuracy %'] >> visible=true").count() == len(runs)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate(CUT) == 0


def crossval(folder):
    return report.write_report([make_crossval(folder, made_folds(5, failed=(2,), cores=4))], folder / "page.html")


def forecast(folder):
    predicted = [(Experiment(engine="virtual", workers=n), made_prediction(n)) for n in (1, 4, 32, 1024)]
    return Forecast(predicted).report(folder / "page.html")


def twin(folder):
    common = {"steps_per_epoch": 30, "epochs": 1, "workers": 2}
    return Twin(make_run(folder, **common), make_virtual_run(folder, **common), 0.0).report(folder / "page.html")


def devices(folder):
    common = {"steps_per_epoch": 30, "epochs": 1}
    grid = [{"optimizer": optimizer, "device": device} for optimizer in ("sgd", "adam") for device in ("cpu", "cuda")]
    return report.write_report([make_run(folder, **common, **fields) for fields in grid], folder / "page.html")


def recipe(folder):
    result = RecipeResult(load("dsmp-table-3"), "small", [])
    numbers = {"seconds": 1.0, "accuracy": 0.5}
    result.rows = [ResultRow(row.label, row.settings, row.paper, numbers, "predicted") for row in result.rows]
    return result.report(folder / "page.html")


def scaling(folder):
    common = {"steps_per_epoch": 30, "epochs": 1, "name": "a name that is not short"}
    both = Comparison([make_run(folder, **common, workers=n, result={"seconds": 8 / n}) for n in (1, 2, 4)])
    far = Forecast([(Experiment(engine="virtual", workers=n), made_prediction(n)) for n in (1, 8, 64)])
    return ScalingStudy(both, both, far, [far], samples=50, link="10gbe").report(folder / "page.html")


def race(folder):
    runs = [make_run(folder, steps_per_epoch=30, epochs=1, result={"seconds": seconds}) for seconds in (8.0, 4.0, 2.0)]
    contestants = [
        Contestant(
            name=f"side {run.id}", about="plain PyTorch: DataLoader", seconds=9.0, interval=(8.0, 9.5), run=run.id
        )
        for run in runs
    ]
    held = Race(title="Race", task="by turns", machine="2 cores", target=0.01, contestants=contestants)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scaling, "seconds", lambda *asked: 64.0 / asked[-1])
        page = folder / "page.html"
        page.write_text(render_race(held, {run.id: run for run in runs}, folder))
    return page


@pytest.mark.parametrize(
    ("write", "pictures"),
    [
        (crossval, "svg.strip"),
        (forecast, ".chart"),
        (twin, ".lanes"),
        (devices, ".bar-line"),
        (recipe, "*"),
        (scaling, ".chart"),
        (race, ".chart"),
    ],
)
def test_other_pages_load_quietly_and_fit(visit_well, tmp_path, write, pictures):
    address = write(tmp_path).as_uri()
    for width, scheme in ((400, "dark"), (1400, "light")):
        page = visit_well(address, width, scheme)
        assert page.locator(f"[data-plot] {pictures} >> visible=true").count() >= 1
        assert page.locator("[data-plot]:empty").count() == 0
        assert page.evaluate(CUT) == 0


def test_every_trial_of_a_sweep_is_drawn_and_listed(visit, tmp_path):
    fields = {"model": "mlp", "data": "digits", "limit": 120, "validation_fraction": 0.3, "threads": 1, "epochs": 1}
    space = {"lr": [0.01, 0.1], "optimizer": ["sgd", "adam"], "sampler": "grid"}
    swept = tenfold.sweep(**fields, **space, runs=tmp_path, progress=False)
    page = visit(swept.report(tmp_path / "page.html").as_uri())
    page.wait_for_selector(".parallel .trial")
    assert page.locator(".parallel .trial").count() == 4
    assert page.locator("[data-plot=history] canvas").count() == 1
    assert page.locator("[data-part=trials] tbody tr").count() == 4
    page.locator(".parallel .trial").last.hover(force=True)
    assert page.problems == []


def test_plots_tell_values_zoom_and_hide_lines(visit_well, tmp_path):
    predicted = [
        (Experiment(engine="virtual", workers=n, strategy=name), made_prediction(n))
        for name in ("allreduce", "ring")
        for n in (1, 4, 32)
    ]
    page = visit_well(Forecast(predicted).report(tmp_path / "page.html").as_uri(), 1200)
    chart = page.locator("[data-plot=speedup] .chart")
    over = chart.locator(".u-over")
    box = over.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.965, box["y"] + 20)
    places = [(x, y) for x in (0.96, 0.965, 0.97) for y in range(5, int(box["height"]), 8)]
    tip = page.locator("[data-plot=speedup] .tip")
    for x, y in places:
        page.mouse.move(box["x"] + box["width"] * x, box["y"] + y)
        if tip.is_visible():
            break
    assert "32 workers: " in tip.inner_text()
    assert "predicted" in tip.inner_text()
    before = chart.get_attribute("aria-label")
    page.mouse.move(box["x"] + 100, box["y"] + 80)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 80, steps=3)
    page.mouse.up()
    reset = page.locator("[data-plot=speedup] .reset")
    assert reset.is_visible()
    reset.click()
    assert not reset.is_visible()
    name = page.locator("[data-plot=speedup] .legend button").nth(1)
    name.click()
    assert name.get_attribute("aria-pressed") == "false"
    assert "ideal: number of workers" in before
    page.locator("[data-plot=speedup] figure").hover()
    saved = {}
    for kind in ("CSV", "SVG", "PNG"):
        with page.expect_download() as download:
            page.locator(f"[data-plot=speedup] .save >> text={kind}").click()
        saved[kind] = Path(download.value.path()).read_bytes()
    assert saved["CSV"].startswith(b"line,workers,")
    assert b"<polyline" in saved["SVG"]
    assert saved["PNG"].startswith(b"\x89PNG")
