import { element } from "./dom.js";
import { duration, metricValue } from "./format.js";
import { setUpPage } from "./theme.js";
import { mountPanels } from "./panels.js";
import { ask, extend, follow, hideToken, setParts } from "./live.js";
import { sayOnNextPage, sayWhatWasDone, say, showActions } from "./actions.js";
import { progressText } from "./progress.js";

// The page of one run, which follows it while it is running.

const MOST_SPANS = 20000;

hideToken();
sayWhatWasDone();
setUpPage();
const data = JSON.parse(document.getElementById("figures").textContent);
const number = Number(location.pathname.split("/").pop());
const live = element("div", { class: "live-cards" });
document.querySelector('[data-part="headline"]').before(live);
let row = null;
let figure = data.figures.find((one) => one.id === number) || null;
let position = figure?.position || "0.0";
let zoomed = false;
const known = { status: document.querySelector(".facts .status")?.textContent || "" };

const consolePlace = document.querySelector("[data-console]");
showConsole(null);

// The console: complete lines stay, the last one is replaced while it is being written.
function showConsole(news) {
  if (!consolePlace) return;
  const text = consolePlace.querySelector("pre");
  if (news?.again) text.replaceChildren();
  if (news) {
    while (text.childNodes.length < 2) text.append(document.createTextNode(""));
    text.firstChild.appendData(news.lines);
    text.lastChild.data = news.rest;
  }
  consolePlace.classList.toggle("empty", !text.textContent);
}

// The other run that this one is compared with.
const other = document.getElementById("other");
other?.addEventListener("change", showOther);

async function showOther() {
  if (!other) return;
  const problem = document.getElementById("other-problem");
  problem.textContent = "";
  try {
    setParts(await ask(`/data/run/${number}/versus/${other.value}`));
  } catch (error) {
    problem.textContent = error.message;
  }
}

const panels = mountPanels(data, {
  live: known.status === "running", refineCurves: refine, refineLanes,
});

async function refine(first, last) {
  if (!figure) return;
  zoomed = first !== null;
  const range = zoomed ? `?from=${first}&to=${last}` : "?from=-1&to=1e18";
  const { curves } = await ask(`/data/run/${number}/curves${range}`);
  if (zoomed === (first !== null)) panels.curves.set([{ ...figure, curves }]);
}

async function refineLanes(range) {
  if (!range) return panels.lanes.forEach((panel) => panel.set(figure.lanes));
  const { lanes } = await ask(`/data/run/${number}/lanes?from=${range[0]}&to=${range[1]}`);
  panels.lanes.forEach((panel) => panel.set(lanes));
}

async function readAgain() {
  const again = await ask(`/data/run/${number}`);
  if (figure) Object.assign(figure, again);
  else figure = again;
  position = again.position;
  draw();
}

// The folds of a cross-validation so far, and the model once it is there.
async function readRest() {
  const rest = await ask(`/data/run/${number}/rest`);
  panels.quality?.set(rest.quality);
  panels.setPlots(rest.plots);
  if (!rest.folds.length) return;
  data.figures = rest.folds;
  if (!zoomed) panels.curves?.set(data.figures);
}

function draw() {
  if (!zoomed) panels.curves?.set(data.figures);
  panels.bars?.set([{ label: "", times: figure.times }]);
  panels.memory?.set(figure);
  panels.lanes.forEach((panel) => { if (!panel.range) panel.set(figure.lanes); });
}

function showRow() {
  showActions(document.getElementById("actions"), row, (what, done) => {
    if (what !== "remove") return;
    sayOnNextPage(done);
    location.href = "/";
  });
  const about = [...(row.tags || []).map((tag) => `#${tag}`), row.note].filter(Boolean).join(" ");
  document.getElementById("actions").append(element("span", { class: "soft" }, about));
}

// How far a running run is, and its numbers so far; what it is compared with comes when it has ended.
function showProgress() {
  document.querySelector('[data-part="headline"]').hidden = Boolean(row.progress);
  if (!row.progress) return live.replaceChildren();
  const { share, done, of, unit, left, loss } = row.progress;
  const cards = [
    [`${unit} of ${of}`, String(done)],
    ["time left, estimated", left === null ? null : duration(left)],
    ["training loss", loss === null || loss === undefined ? null : metricValue("loss", loss)],
    [row.metric && `${row.metric} after the last epoch`, row.metric && row.metric !== "loss" ? metricValue(row.metric, row.score) : null],
  ];
  live.replaceChildren(
    element("progress", { value: share, max: 1, "aria-label": progressText(row.progress) }),
    element("dl", { class: "numbers" }, cards.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)))));
}

follow(() => ({ runs: `${number}@${position}`, parts: 1, list: "0:0", only: number, running: known.status === "running" ? number : "" }), (news) => {
  const mine = news.list?.rows.find((one) => one.id === number);
  if (mine) {
    const before = row;
    row = mine;
    showProgress();
    const same = before && ["status", "title", "note"].every((name) => before[name] === row[name]) && String(before.tags) === String(row.tags);
    if (!same) showRow();
    if (before && before.title !== row.title) document.querySelector("h1").textContent = row.title;
  }
  const own = news.runs?.[number];
  if (!own) return;
  if (own.gone) {
    document.getElementById("actions").replaceChildren();
    say(own.gone, true);
  }
  if (own.position) position = own.position;
  if (own.status && own.status !== known.status) {
    if (document.getElementById("said").textContent) say(`Run ${number}: ${own.status}`);
    known.status = own.status;
  }
  if (own.console) showConsole(own.console);
  if (own.again) return void readAgain();
  if (own.parts) {
    setParts(own.parts);
    if (!figure || own.status !== "running") readRest();
    if (own.status !== "running") showOther();
  }
  if (figure && own.curves) {
    extend(figure, own.curves);
    for (const name of Object.keys(figure.lanes)) figure.lanes[name].push(...own.lanes[name]);
    figure.times = own.times;
    const started = own.parts && !figure.epochLength;
    if (figure.lanes.at.length > MOST_SPANS || started) readAgain();
    else draw();
  }
});
