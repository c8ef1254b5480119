import { element, toggle } from "./dom.js";
import { count, duration, isPercent, metricValue, NOTHING } from "./format.js";
import { setUpPage } from "./theme.js";
import { ask, follow, hideToken } from "./live.js";
import { progressText } from "./progress.js";
import { sayWhatWasDone } from "./actions.js";
import { groupRows, sortRows } from "./grouping.js";

// The table of all runs: sorted, filtered, grouped, and selected to compare.

const FIRST_ROWS = 100;
const MORE_ROWS = 200;
const COLUMNS = [
  { name: "run", value: (row) => row.id, words: true },
  { name: "title", value: (row) => row.title, words: true },
  { name: "state", value: (row) => row.status, words: true },
  { name: "model", value: (row) => row.fields.model, words: true },
  { name: "data", value: (row) => row.fields.data, words: true },
  { name: "workers", value: (row) => Number(row.fields.workers) },
  { name: "strategy", value: (row) => (row.fields.workers === "1" ? "" : row.fields.strategy), words: true },
  { name: "score", value: (row) => row.score, text: (row) => (row.score === null ? NOTHING : `${metricValue(row.metric, row.score)}${row.metric === "accuracy" ? "" : ` ${row.metric}`}`) },
  { name: "loss", value: (row) => row.loss, text: (row) => metricValue("loss", row.loss) },
  { name: "training time", value: (row) => row.seconds, text: (row) => (row.seconds === null ? NOTHING : `${duration(row.seconds)}${row.clock === "predicted" ? " predicted" : ""}`) },
  { name: "samples/s", value: (row) => row.speed, text: (row) => count(row.speed) },
  { name: "started", value: (row) => row.created, text: (row) => ago(row.created) },
];

hideToken();
sayWhatWasDone();
setUpPage();
const place = document.getElementById("runs");
const rows = new Map();
const state = { sort: "run", down: true, text: "", chosen: null, folds: false, group: "none", selected: new Set(), open: new Set(), shown: FIRST_ROWS, version: "0:0" };
const filter = element("input", { type: "search", id: "filter", placeholder: "words, or workers>=4 strategy=butterfly accuracy>97%", "aria-label": "Filter runs", "aria-describedby": "filter-problem", autocomplete: "off", spellcheck: "false" });
const problem = element("span", { id: "filter-problem", role: "status", class: "failed" });
const compare = element("button", { type: "button", class: "toggle main", disabled: true, onclick: () => { location.href = `/compare?runs=${[...state.selected].join(",")}`; } }, "Compare");
const summary = element("span", { class: "soft", role: "status" });
const grouping = element("select", { "aria-label": "Group by", onchange: () => { state.group = grouping.value; draw(); } });
const head = element("thead");
const body = element("tbody");
const more = element("button", { type: "button", class: "toggle", hidden: true, onclick: () => { state.shown += MORE_ROWS; draw(); } }, "Show more");
place.replaceChildren(
  element("div", { class: "controls" }, filter, element("label", { class: "slider" }, "group by", grouping), toggle("folds", false, (on) => { state.folds = on; draw(); }), compare, summary),
  problem, element("div", { class: "scroll" }, element("table", { class: "stacked runs" }, head, body)), more);
new IntersectionObserver(([seen]) => { if (seen.isIntersecting && !more.hidden) more.click(); }).observe(more);

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
  const kept = [...rows.values()].filter((row) => (state.folds || row.kind !== "fold") && (!state.chosen || state.chosen.has(row.id)));
  const column = COLUMNS.find((one) => one.name === state.sort);
  return sortRows(kept, column.value, state.down);
}

function draw() {
  const kept = visible();
  nameGroups();
  head.replaceChildren(element("tr", {}, element("th", { class: "words", scope: "col" }, element("span", { class: "unseen" }, "select")), COLUMNS.map(heading)));
  const made = state.group === "none" ? kept.slice(0, state.shown).map(rowOf) : groupRows(kept, state.group).flatMap(groupOf).slice(0, state.shown);
  body.replaceChildren(...made);
  more.hidden = state.group !== "none" || kept.length <= state.shown;
  const running = kept.filter((row) => row.status === "running").length;
  const all = [...rows.values()].filter((row) => state.folds || row.kind !== "fold").length;
  summary.textContent = `${state.chosen ? `${count(kept.length)} of ` : ""}${count(all)} run${all === 1 ? "" : "s"}${running ? `, ${running} running` : ""}`;
  for (const run of [...state.selected]) if (!rows.has(run)) state.selected.delete(run);
  compare.disabled = state.selected.size < 2;
  compare.textContent = state.selected.size > 1 ? `Compare ${state.selected.size} runs` : "Compare";
  if (!rows.size) body.replaceChildren(element("tr", {}, element("td", { class: "words", colspan: COLUMNS.length + 1 }, "There are no runs yet; `tenfold train` records one, and it appears here.")));
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
    }, column.name, element("span", { class: "arrow", "aria-hidden": "true" }, active ? (state.down ? " ▾" : " ▴") : "")));
}

function rowOf(row) {
  const box = element("input", { type: "checkbox", "aria-label": `Select run ${row.id}`, onchange: () => { if (box.checked) state.selected.add(row.id); else state.selected.delete(row.id); draw(); } });
  box.checked = state.selected.has(row.id);
  return element("tr", { "data-run": row.id }, element("td", { class: "words", "data-name": "select" }, box), COLUMNS.map((column) => element("td", { class: column.words ? "words" : "", "data-name": column.name }, cell(column, row))));
}

function cell(column, row) {
  if (column.name === "run") return element("a", { href: `/run/${row.id}` }, String(row.id));
  if (column.name === "title") return [element("a", { href: `/run/${row.id}`, class: "title" }, row.title), row.fields.folds ? element("span", { class: "soft" }, ` ${row.fields.folds} folds`) : null, ...row.tags.map((tag) => element("span", { class: "tag" }, tag)), row.note ? element("span", { class: "soft", title: row.note }, " ✎") : null];
  if (column.name === "state") {
    const word = element("span", { class: row.status, title: row.error }, row.status);
    if (!row.progress) return word;
    return element("span", { class: "progress" }, word, element("progress", { value: row.progress.share, max: 1, "aria-label": progressText(row.progress) }), element("span", { class: "soft" }, progressText(row.progress)));
  }
  return column.text ? column.text(row) : String(column.value(row) ?? "") || "";
}

function groupOf(group) {
  const open = state.open.has(group.key);
  const summaries = { score: group.score && metricSpread(group.metric, group.score), loss: group.loss && metricSpread("loss", group.loss), "training time": group.seconds && timeSpread(group.seconds), "samples/s": group.speed && count(group.speed.mean) };
  const name = element("button", { type: "button", class: "group", "aria-expanded": String(open), onclick: () => { if (open) state.open.delete(group.key); else state.open.add(group.key); draw(); } }, `${open ? "▾" : "▸"} ${group.label}`);
  const cells = COLUMNS.map((column) => summaries[column.name] || (group.common[column.name] ?? ""));
  const box = element("input", { type: "checkbox", "aria-label": `Select ${group.rows.length} runs of ${group.label}`, onchange: () => { group.rows.forEach((row) => (box.checked ? state.selected.add(row.id) : state.selected.delete(row.id))); draw(); } });
  box.checked = group.rows.every((row) => state.selected.has(row.id));
  const line = element("tr", { class: "grouped" }, element("td", { class: "words" }, box), element("td", { class: "words", colspan: 2 }, name, element("span", { class: "soft" }, ` ${group.rows.length} run${group.rows.length > 1 ? "s" : ""}`)),
    cells.slice(2).map((text, at) => element("td", { class: COLUMNS[at + 2].words ? "words" : "", "data-name": COLUMNS[at + 2].name }, text)));
  return open ? [line, ...group.rows.map(rowOf)] : [line];
}

function metricSpread(metric, { mean, deviation }) {
  return `${metricValue(metric, mean)}${deviation === null ? "" : ` ± ${isPercent(metric) ? (100 * deviation).toFixed(2) : deviation.toPrecision(2)}`}`;
}

function timeSpread({ mean, deviation }) {
  return `${duration(mean)}${deviation === null ? "" : ` ± ${duration(deviation)}`}`;
}

// Offers the fields in which runs differ.
function nameGroups() {
  const values = new Map();
  for (const row of rows.values()) for (const [name, value] of Object.entries(row.fields)) values.set(name, (values.get(name) || new Set()).add(value));
  const fields = [...values].filter(([name, found]) => found.size > 1 && name !== "seed").map(([name]) => name).sort();
  const wanted = [["none", "nothing"], ["setting", "setting (all but the seed)"], ["parent", "cross-validation"], ...fields.map((name) => [name, name.replaceAll("_", " ")])];
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

take(await ask("/data/runs"));
draw();
follow(() => ({ list: state.version }), (news) => {
  if (!news.list) return;
  const before = rows.size;
  take(news.list);
  if (state.text && (rows.size !== before || news.list.rows.some((row) => row.status !== "running"))) applyFilter();
  else draw();
});
