import { element } from "./dom.js";
import { count, percent, significant } from "./format.js";
import { Chart } from "./chart.js";

// Looking at the model: confusion matrix, accuracy by class, calibration, worst mistakes; for numbers, predicted against true.

const RIGHT = [45, 105, 210];
const WRONG = [195, 30, 15];
const STRONGEST = 0.65; // so that numbers on it are easy to read in light and dark

export class QualityPanel {
  constructor(root) {
    this.root = root;
  }

  set(quality) {
    if (!quality) return this.root.replaceChildren();
    const about = `On the ${count(quality.samples)} samples of the ${quality.part} part.`;
    this.root.replaceChildren(element("h2", {}, "Model"), element("p", { class: "eyebrow" }, about), ...(quality.kind === "numbers" ? numbers(quality) : classes(quality)));
  }
}

function classes(quality) {
  const left = quality.confusion ? matrix(quality) : null;
  return [
    element("div", { class: "plots" }, left, element("div", {}, byClass(quality), calibration(quality))),
    quality.mistakes.length ? mistakes(quality.mistakes) : null,
  ].filter(Boolean);
}

function matrix({ confusion, classes: many }) {
  const most = confusion.map((row) => Math.max(1, row.reduce((sum, one) => sum + one, 0)));
  const heading = element("tr", {}, element("th", { scope: "col" }, "true"), confusion.map((_, at) => element("th", { scope: "col" }, String(at))));
  const rows = confusion.map((row, at) => element("tr", {}, element("th", { scope: "row" }, String(at)), row.map((value, to) => {
    const share = value / most[at];
    const alpha = to === at ? share : Math.min(1, 6 * share);
    const color = value ? `rgb(${(to === at ? RIGHT : WRONG).join(" ")} / ${Math.max(0.08, STRONGEST * alpha).toFixed(2)})` : "";
    const told = to === at ? `${count(value)} of class ${at} were right` : `${count(value)} of class ${at} were taken for ${to}`;
    return element("td", { title: told, style: { background: color } }, value ? String(value) : "");
  })));
  return element("figure", { class: "interactive" }, element("h3", {}, "Confusion matrix"),
    element("div", { class: "scroll" }, element("table", { class: `matrix${many > 12 ? " small" : ""}` }, element("thead", {}, heading), element("tbody", {}, rows))),
    element("figcaption", {}, "Rows: the true class. Columns: what the model predicted. Blue is right, red is wrong."));
}

function byClass({ byClass: rows }) {
  const sorted = [...rows].sort((a, b) => (a.recall ?? 2) - (b.recall ?? 2));
  const shown = sorted.slice(0, 12);
  const figure = element("figure", { class: "interactive" }, element("h3", {}, rows.length > shown.length ? `Accuracy by class, the lowest ${shown.length} of ${rows.length}` : "Accuracy by class"),
    shown.map((row) => element("div", { class: "bar-row class-row", title: `${count(row.samples)} samples, precision ${row.precision === null ? "unknown" : percent(row.precision)}` },
      element("span", { class: "bar-name" }, `class ${row.class}`),
      element("div", { class: "bar", role: "img", "aria-label": `class ${row.class}: ${row.recall === null ? "no samples" : percent(row.recall)}` }, element("span", { class: "part", style: { width: `${100 * (row.recall || 0)}%`, background: "#2d69d2" } })),
      element("span", { class: "bar-sum" }, row.recall === null ? "no samples" : `${(100 * row.recall).toFixed(1)}%`))));
  figure.rows = () => [["class", "samples", "accuracy", "precision"], ...rows.map((row) => [row.class, row.samples, row.recall, row.precision])];
  return figure;
}

function calibration({ calibration: bins, calibrationError }) {
  const chart = new Chart({ title: "Calibration", about: "accuracy by confidence", written: (value) => percent(value) });
  queueMicrotask(() => chart.draw([
    { key: "ideal", label: "ideal", color: null, dash: [4, 4], alpha: 0.5, x: [0, 1], y: [0, 1] },
    { key: "model", label: "accuracy", color: "#2d69d2", marks: true, x: bins.map((bin) => bin.confidence), y: bins.map((bin) => bin.accuracy) },
  ], { lastValues: false, label: "confidence", logX: false, logY: false, ticks: (value) => percent(value) }));
  chart.root.append(element("figcaption", {}, `Below the dashed line the model is more sure than it is right. Expected calibration error ${percent(calibrationError)}.`));
  return chart.root;
}

function mistakes(list) {
  return element("figure", { class: "interactive" }, element("h3", {}, "The most confident mistakes"),
    element("ul", { class: "mistakes" }, list.map((one) => element("li", {},
      element("img", { src: one.picture, alt: `sample ${one.sample}: class ${one.true}, taken for ${one.predicted}` }),
      element("span", {}, `${one.predicted}, is ${one.true}`), element("span", { class: "soft" }, `${percent(one.confidence)}, sample ${one.sample}`)))),
    element("figcaption", {}, "What the model predicted, the true class, and how sure the model was."));
}

function numbers({ true: wanted, predicted, residuals, bias, deviation }) {
  const order = wanted.map((_, at) => at).sort((a, b) => wanted[a] - wanted[b]);
  const ends = [Math.min(...wanted), Math.max(...wanted)];
  const written = (value) => significant(value, 4);
  const scatter = new Chart({ title: "Predicted against true", about: "predicted against true", written });
  const spread = new Chart({ title: "Residuals (samples)", about: "how often which residual occurs", written: (value) => count(value) });
  queueMicrotask(() => {
    scatter.draw([
      { key: "ideal", label: "ideal", color: null, dash: [4, 4], alpha: 0.6, x: ends, y: ends },
      { key: "model", label: "predicted", color: "#2d69d2", scatter: true, alpha: 0.5, x: order.map((at) => wanted[at]), y: order.map((at) => predicted[at]) },
    ], { lastValues: false, label: "true value", logX: false, logY: false });
    const counts = [...residuals.counts, residuals.counts.at(-1)];
    spread.draw([{ key: "count", label: "samples", color: "#2d69d2", stepped: true, x: residuals.edges, y: counts }], { lastValues: false, label: "predicted - true", logX: false, logY: false, bounds: [0, null] });
  });
  return [element("div", { class: "plots" }, scatter.root, spread.root), element("p", { class: "eyebrow" }, `Residuals: mean ${significant(bias)}, standard deviation ${significant(deviation)}.`)];
}
