import { drawing, element, toggle } from "./dom.js";
import { count, duration, isPercent, metricValue, NOTHING } from "./format.js";
import { setUpPage } from "./theme.js";
import { ask, follow, hideToken } from "./live.js";
import { progressText } from "./progress.js";
import { sayWhatWasDone } from "./actions.js";
import { followsFromWorkers, groupRows, sortRows } from "./grouping.js";

// The table of all runs: sorted, filtered, grouped, and selected to compare.

const FIRST_ROWS = 100;
const MORE_ROWS = 200;
const MOST_FIELDS = 6; // differing fields that are shown unless others are chosen
const FIRST_FIELDS = ["model", "data", "workers", "strategy", "optimizer", "lr", "batch_size", "sync_every", "epochs"];
const FIXED = [
  { name: "run", value: (row) => row.id, words: true },
  { name: "title", value: (row) => row.title, words: true },
  { name: "state", value: (row) => row.status, words: true },
];
const MEASURED = [
  { name: "score", value: (row) => row.score, text: (row) => withDifference(row, (one) => one.score, scoreText, pointsApart) },
  { name: "curve", value: (row) => row.curve?.at(-1) ?? null, text: sparkline },
  { name: "loss", value: (row) => row.loss, text: (row) => withDifference(row, (one) => one.loss, (one) => metricValue("loss", one.loss), (a, b) => signed(a - b, 3)) },
  { name: "training time", value: (row) => row.seconds, text: (row) => withDifference(row, (one) => (one.clock === row.clock ? one.seconds : null), timeText, (a, b) => `${(b / a).toPrecision(3)}x as fast`) },
  { name: "samples/s", value: (row) => row.speed, text: (row) => count(row.speed) },
  { name: "started", value: (row) => row.created, text: (row) => ago(row.created) },
];
const SHOWN_MEASURED = ["score", "curve", "training time", "started"]; // and the loss, where it is all that was measured
const DEFAULTS = { sort: "run", down: true, text: "", folds: false, group: "parent", columns: null, baseline: null };

hideToken();
sayWhatWasDone();
setUpPage();
const place = document.getElementById("runs");
const jobs = document.getElementById("jobs");
const rows = new Map();
const state = { ...DEFAULTS, chosen: null, selected: new Set(), open: new Set(), shown: FIRST_ROWS, version: "0:0", ...readAddress() };
const filter = element("input", { type: "search", id: "filter", placeholder: "words, or workers>=4 strategy=butterfly accuracy>97%", "aria-label": "Filter runs", "aria-describedby": "filter-problem", autocomplete: "off", spellcheck: "false" });
const problem = element("span", { id: "filter-problem", role: "status", class: "failed" });
const compare = element("button", { type: "button", class: "toggle main", disabled: true, onclick: () => { location.href = `/compare?runs=${[...state.selected].join(",")}`; } }, "Compare");
const summary = element("span", { class: "soft", role: "status" });
const grouping = element("select", { "aria-label": "Group by", onchange: () => { state.group = grouping.value; draw(); } });
const choosing = element("details", { class: "columns" });
const folds = toggle("folds and trials", state.folds, (on) => { state.folds = on; draw(); });
const head = element("thead");
const body = element("tbody");
const more = element("button", { type: "button", class: "toggle", hidden: true, onclick: () => { state.shown += MORE_ROWS; draw(); } }, "Show more");
place.replaceChildren(
  element("div", { class: "controls" }, filter, element("label", { class: "slider" }, "group by", grouping), folds, choosing, compare, summary),
  problem, element("div", { class: "scroll" }, element("table", { class: "stacked runs" }, head, body)), more);
new IntersectionObserver(([seen]) => { if (seen.isIntersecting && !more.hidden) more.click(); }).observe(more);

filter.value = state.text;

// What the page shows is in its address, so that it can be shared and bookmarked.
function readAddress() {
  const given = new URLSearchParams(location.search);
  const found = {};
  if (given.has("q")) found.text = given.get("q");
  if (given.has("group")) found.group = given.get("group");
  if (given.has("sort")) [found.sort, found.down] = [given.get("sort").replace(/^-/, ""), given.get("sort").startsWith("-")];
  if (given.has("columns")) found.columns = given.get("columns").split(",").filter(Boolean);
  if (given.has("folds")) found.folds = true;
  if (given.has("baseline")) found.baseline = Number(given.get("baseline"));
  if (given.has("selected")) found.selected = new Set(given.get("selected").split(",").map(Number));
  return found;
}

function writeAddress() {
  const kept = new URLSearchParams();
  if (state.text) kept.set("q", state.text);
  if (state.group !== DEFAULTS.group) kept.set("group", state.group);
  if (state.sort !== DEFAULTS.sort || !state.down) kept.set("sort", `${state.down ? "-" : ""}${state.sort}`);
  if (state.columns) kept.set("columns", state.columns.join(","));
  if (state.folds) kept.set("folds", "1");
  if (state.baseline !== null) kept.set("baseline", state.baseline);
  if (state.selected.size) kept.set("selected", [...state.selected].join(","));
  const address = `${location.pathname}${kept.size ? `?${kept}` : ""}`;
  if (address !== location.pathname + location.search) history.replaceState(null, "", address);
}

function fieldText(row, name) {
  return row.fields[name] === "unset" ? "" : row.fields[name] ?? "";
}

// A column for each field of an experiment; what follows from another, such as the strategy of one worker, is left out.
function fieldColumn(name) {
  const number = (row) => (row.fields[name] !== undefined && !Number.isNaN(Number(row.fields[name])) ? Number(row.fields[name]) : row.fields[name]);
  const text = (row) => (followsFromWorkers(name, row.fields) ? "" : fieldText(row, name));
  const words = [...rows.values()].some((row) => typeof number(row) === "string");
  return { name, heading: name.replaceAll("_", " "), value: number, text, words };
}

function fieldNames() {
  return [...new Set([...rows.values()].flatMap((row) => Object.keys(row.fields)))].sort();
}

// The fields of each line of the table: of a run, or what the runs of a closed group have in common.
function linesOf(listed, groups) {
  const ofRun = (row) => (name) => (followsFromWorkers(name, row.fields) ? undefined : fieldText(row, name));
  if (!groups) return listed.map(ofRun);
  return groups.flatMap((group) => (isOneRun(group) || state.open.has(group.key) ? group.rows.map(ofRun) : [(name) => group.common(name) || undefined]));
}

// The chosen columns; by default, of the fields those in which lines differ.
function columnsOf(listed, lines) {
  const differing = fieldNames().filter((name) => new Set(lines.map((line) => line(name)).filter((value) => value !== undefined)).size > 1);
  const order = [...FIRST_FIELDS, ...differing.filter((name) => name !== "name")];
  const usual = [...new Set(order)].filter((name) => differing.includes(name)).slice(0, MOST_FIELDS);
  const unscored = listed.every((row) => row.metric === null || row.metric === "loss");
  const wanted = state.columns || [...usual, ...SHOWN_MEASURED, ...(unscored ? ["loss"] : [])];
  const measured = MEASURED.filter((column) => wanted.includes(column.name));
  return [...FIXED, ...fieldNames().filter((name) => wanted.includes(name)).sort((a, b) => wanted.indexOf(a) - wanted.indexOf(b)).map(fieldColumn), ...measured];
}

function offerColumns(shown) {
  const open = choosing.open;
  const names = [...MEASURED.map((column) => column.name), ...fieldNames()];
  const current = shown.map((column) => column.name);
  const boxes = names.map((name) => {
    const box = element("input", { type: "checkbox", onchange: () => { state.columns = box.checked ? [...current, name] : current.filter((one) => one !== name); draw(); } });
    box.checked = current.includes(name);
    return element("label", {}, box, name.replaceAll("_", " "));
  });
  const reset = element("button", { type: "button", class: "toggle", disabled: !state.columns, onclick: () => { state.columns = null; draw(); } }, "Those that differ");
  choosing.replaceChildren(element("summary", {}, "Columns"), element("div", { class: "menu" }, reset, boxes));
  choosing.open = open;
}

let waiting = 0;
filter.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(applyFilter, 150);
});

async function applyFilter() {
  state.text = filter.value.trim();
  problem.textContent = "";
  if (!state.text) state.chosen = null;
  else
    try {
      state.chosen = new Set((await ask(`/data/filter?q=${encodeURIComponent(state.text)}`)).runs);
    } catch (error) {
      problem.textContent = error.message;
    }
  state.shown = FIRST_ROWS;
  draw();
}

function visible() {
  const kept = [...rows.values()].filter((row) => (state.folds || state.group === "parent" || !row.parent) && (!state.chosen || state.chosen.has(row.id)));
  const column = [...FIXED, ...MEASURED].find((one) => one.name === state.sort) || fieldColumn(state.sort);
  return sortRows(kept, column.value, state.down);
}

let shownColumns = FIXED;

function draw() {
  const kept = visible();
  nameGroups();
  const groups = state.group === "none" ? null : groupRows(kept, state.group);
  shownColumns = columnsOf(kept, linesOf(kept, groups));
  offerColumns(shownColumns);
  folds.hidden = state.group === "parent" || ![...rows.values()].some((row) => row.parent);
  head.replaceChildren(element("tr", {}, element("th", { class: "words", scope: "col" }, element("span", { class: "unseen" }, "select")), shownColumns.map(heading)));
  const made = groups ? groups.flatMap(groupOf).slice(0, state.shown) : kept.slice(0, state.shown).map(rowOf);
  body.replaceChildren(...made);
  more.hidden = made.length < state.shown;
  const running = kept.filter((row) => row.status === "running").length;
  const all = [...rows.values()].filter((row) => state.folds || !row.parent).length;
  summary.textContent = `${state.chosen ? `${count(kept.length)} of ` : ""}${count(all)} run${all === 1 ? "" : "s"}${running ? `, ${running} running` : ""}`;
  for (const run of [...state.selected]) if (!rows.has(run)) state.selected.delete(run);
  compare.disabled = state.selected.size < 2;
  compare.textContent = state.selected.size > 1 ? `Compare ${state.selected.size} runs` : "Compare";
  if (!kept.length) body.replaceChildren(element("tr", {}, element("td", { class: "words empty", colspan: shownColumns.length + 1 }, nothing())));
  writeAddress();
}

// What is written where no run is listed, and what to do about it.
function nothing() {
  if (!rows.size) return ["There are no runs yet; ", element("code", {}, "tenfold train"), " records one, and it appears here."];
  const clear = element("button", { type: "button", class: "toggle", onclick: () => { filter.value = ""; applyFilter(); } }, "Clear the filter");
  return [`No run of ${count(rows.size)} matches “${state.text}”. `, clear];
}

function heading(column) {
  const active = state.sort === column.name;
  return element("th", { class: column.words ? "words" : "", scope: "col", "aria-sort": active ? (state.down ? "descending" : "ascending") : "none" },
    element("button", {
      type: "button",
      onclick: () => {
        state.down = active ? !state.down : !column.words;
        state.sort = column.name;
        draw();
        [...head.querySelectorAll("button")].find((one) => one.dataset.name === column.name)?.focus();
      },
      "data-name": column.name,
    }, column.heading || column.name, element("span", { class: "arrow", "aria-hidden": "true" }, active ? (state.down ? " ▾" : " ▴") : "")));
}

function rowOf(row) {
  const box = element("input", { type: "checkbox", "aria-label": `Select run ${row.id}`, onchange: () => { if (box.checked) state.selected.add(row.id); else state.selected.delete(row.id); draw(); } });
  box.checked = state.selected.has(row.id);
  return element("tr", { "data-run": row.id, class: row.id === state.baseline ? "baseline" : "" }, element("td", { class: "words", "data-name": "select" }, box), shownColumns.map((column) => element("td", { class: column.words ? "words" : "", "data-name": column.heading || column.name }, cell(column, row))));
}

function cell(column, row) {
  if (column.name === "run") return [element("a", { href: `/run/${row.id}` }, String(row.id)), pin(row)];
  if (column.name === "title") return [element("a", { href: `/run/${row.id}`, class: "title" }, row.title), row.fields.folds ? element("span", { class: "soft" }, ` ${row.fields.folds} folds`) : null, ...row.tags.map((tag) => element("span", { class: "tag" }, tag)), row.note ? element("span", { class: "soft", title: row.note }, " ✎") : null];
  if (column.name === "state") {
    const word = element("span", { class: row.status, title: row.error }, row.status);
    if (!row.progress) return word;
    return element("span", { class: "progress" }, word, element("progress", { value: row.progress.share, max: 1, "aria-label": progressText(row.progress) }), element("span", { class: "soft" }, progressText(row.progress)));
  }
  return column.text ? column.text(row) : String(column.value(row) ?? "") || "";
}

// The baseline is the run that all others are compared with: each number then has its difference below it.
function pin(row) {
  const pinned = row.id === state.baseline;
  const title = pinned ? "No longer compare with this run" : "Compare all with this run";
  return element("button", { type: "button", class: "pin", title, "aria-label": title, "aria-pressed": String(pinned), onclick: () => { state.baseline = pinned ? null : row.id; draw(); } }, pinned ? "★" : "☆");
}

function withDifference(row, value, text, apart) {
  const base = rows.get(state.baseline);
  const [ours, theirs] = [value(row), base ? value(base) : null];
  const comparable = base && base !== row && base.metric === row.metric && ours !== null && theirs !== null && ours !== undefined && theirs !== undefined;
  return comparable ? [text(row), element("span", { class: "difference" }, apart(ours, theirs, row.metric))] : text(row);
}

function scoreText(row) {
  return row.score === null ? NOTHING : `${metricValue(row.metric, row.score)}${row.metric === "accuracy" ? "" : ` ${row.metric}`}`;
}

function timeText(row) {
  return row.seconds === null ? NOTHING : duration(row.seconds) + clockNote(row.clock);
}

function clockNote(clock) {
  return clock === "predicted" ? " predicted" : "";
}

function pointsApart(ours, theirs, metric) {
  return isPercent(metric) ? `${signed(100 * (ours - theirs), 2)} points` : signed(ours - theirs, 3);
}

function signed(value, digits) {
  return `${value > 0 ? "+" : value < 0 ? "−" : "±"}${Math.abs(value).toFixed(digits)}`;
}

// The score (or loss) after each epoch, small.
function sparkline(row) {
  const [width, height] = [64, 18];
  if (!row.curve || row.curve.length < 2) return "";
  const [low, high] = [Math.min(...row.curve), Math.max(...row.curve)];
  const points = row.curve.map((value, at) => `${(at / (row.curve.length - 1)) * (width - 4) + 2},${height - 2 - ((value - low) / (high - low || 1)) * (height - 4)}`);
  const about = `${row.metric || "loss"} after ${row.curve.length} epochs: from ${row.curve[0].toPrecision(3)} to ${row.curve.at(-1).toPrecision(3)}`;
  return drawing("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": about }, drawing("polyline", { points: points.join(" ") }));
}

function isOneRun(group) {
  return state.group === "parent" && group.rows.length === 1;
}

function groupOf(group) {
  if (isOneRun(group)) return [rowOf(group.rows[0])];
  const open = state.open.has(group.key);
  const metric = (name, found) => (group.alike ? metricSpread(name, found) : rangeOf(found, (value) => metricValue(name, value)));
  const summaries = { score: group.score && metric(group.metric, group.score), loss: group.loss && metric("loss", group.loss), "training time": group.times.map((times) => (group.alike ? timeSpread(times) : rangeOf(times, duration)) + clockNote(times.clock)).join(", "), "samples/s": group.speed && count(group.speed.mean) };
  const name = element("button", { type: "button", class: "group", title: group.label, "aria-expanded": String(open), onclick: () => { if (open) state.open.delete(group.key); else state.open.add(group.key); draw(); } }, `${open ? "▾" : "▸"} ${group.label}`);
  const box = element("input", { type: "checkbox", "aria-label": `Select ${group.rows.length} runs of ${group.label}`, onchange: () => { group.rows.forEach((row) => (box.checked ? state.selected.add(row.id) : state.selected.delete(row.id))); draw(); } });
  box.checked = group.rows.every((row) => state.selected.has(row.id));
  const running = group.rows.filter((row) => row.status === "running").length;
  const line = element("tr", { class: "grouped" }, element("td", { class: "words", "data-name": "select" }, box),
    element("td", { class: "words", colspan: 3 }, name, element("span", { class: "soft" }, ` ${group.members} ${group.members > 1 ? `${group.noun}s` : group.noun}${running ? `, ${running} running` : ""}`)),
    shownColumns.slice(3).map((column) => element("td", { class: column.words ? "words" : "", "data-name": column.heading || column.name }, summaries[column.name] || group.common(column.name))));
  const children = group.rows.map(rowOf);
  for (const child of children) child.classList.add("child");
  return open ? [line, ...children] : [line];
}

function metricSpread(metric, { mean, deviation }) {
  return `${metricValue(metric, mean)}${deviation === null ? "" : ` ± ${isPercent(metric) ? (100 * deviation).toFixed(2) : deviation.toPrecision(2)}`}`;
}

// Runs of different settings have no meaningful mean.
function rangeOf({ low, high }, text) {
  return low === high ? text(low) : `${text(low)} to ${text(high)}`;
}

function timeSpread({ mean, deviation }) {
  return `${duration(mean)}${deviation === null ? "" : ` ± ${duration(deviation)}`}`;
}

// Offers the fields in which runs differ.
function nameGroups() {
  const values = new Map();
  for (const row of rows.values()) for (const [name, value] of Object.entries(row.fields)) values.set(name, (values.get(name) || new Set()).add(value));
  const fields = [...values].filter(([name, found]) => found.size > 1 && name !== "seed").map(([name]) => name).sort();
  const wanted = [["none", "nothing"], ["setting", "setting (all but the seed)"], ["parent", "comparison, sweep, folds"], ...fields.map((name) => [name, name.replaceAll("_", " ")])];
  const now = wanted.map(([value]) => value).join();
  if (grouping.dataset.now === now) return;
  grouping.dataset.now = now;
  grouping.replaceChildren(...wanted.map(([value, text]) => element("option", { value, selected: value === state.group }, text)));
}

function ago(then) {
  const passed = Math.max(0, Date.now() / 1000 - then);
  for (const [size, unit, until] of [[1, "s", 60], [60, "min", 3600], [3600, "h", 86400], [86400, "days", 2678400]])
    if (passed < until) return `${Math.floor(passed / size)} ${unit === "days" && passed < 172800 ? "day" : unit} ago`;
  return new Date(then * 1000).toISOString().slice(0, 10);
}

function take(list) {
  for (const row of list.rows) rows.set(row.id, row);
  for (const run of list.gone) rows.delete(run);
  state.version = list.version;
}

// The jobs of executors that have not come back, as their folders in the store say it.
function drawJobs(found) {
  const names = ["job", "run", "on", "state", "node", "done"];
  const lines = found.map((job) => [job.label, job.run ?? "", job.executor, job.state, job.node, `${Math.round(100 * job.done)}%`]);
  jobs.hidden = !found.length;
  jobs.replaceChildren(element("h2", {}, `${found.length} job${found.length === 1 ? "" : "s"} under way`),
    element("div", { class: "scroll" }, element("table", { class: "stacked" },
      element("thead", {}, element("tr", {}, names.map((name) => element("th", { scope: "col", class: name === "done" ? "" : "words" }, name)))),
      element("tbody", {}, lines.map((line) => element("tr", {}, line.map((text, at) => element("td", { class: names[at] === "done" ? "" : "words", "data-name": names[at] }, text))))))));
}

take(await ask("/data/runs"));
if (state.text) await applyFilter();
else draw();
follow(() => ({ list: state.version }), (news) => {
  if (news.jobs) drawJobs(news.jobs);
  if (!news.list) return;
  const before = rows.size;
  take(news.list);
  if (state.text && (rows.size !== before || news.list.rows.some((row) => row.status !== "running"))) applyFilter();
  else draw();
});
