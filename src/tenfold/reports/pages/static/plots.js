import { element } from "./dom.js";
import { significant } from "./format.js";
import { BarsPanel } from "./bars.js";
import { barTable } from "./bar_table.js";
import { Chart } from "./chart.js";
import { LanesPanel } from "./lanes.js";
import { parallelPlot } from "./parallel.js";
import { stripPlot } from "./strips.js";

// The plots that a page describes as values, put into the places that its template keeps for them: see charts.py.

const KINDS_OF_PLOTS = { lines: linePlot, "bar-table": barTable, strips: stripPlot, lanes: lanePlot, shares: sharePlot, parallel: parallelPlot };

export function mountPlots(plots, common) {
  document.querySelectorAll("[data-plot]").forEach((place) => {
    const plot = plots?.[place.dataset.plot];
    if (plot) KINDS_OF_PLOTS[plot.kind](place, plot, common);
  });
}

function linePlot(place, plot) {
  const chart = place.chart || newChart(place, plot);
  const seen = new Set();
  const lines = plot.lines.map((line) => {
    const quiet = seen.has(line.label);
    seen.add(line.label);
    return { ...line, key: line.label, quiet, scatter: !line.joined, marks: !line.reference, width: line.reference ? 1 : 1.6, alpha: line.reference ? 0.55 : 1, x: distinct(line.x) };
  });
  chart.draw(lines, {
    lastValues: false, label: plot.x_label, logX: plot.x_log, logY: plot.y_log, ticksX: plot.x_ticks, namesX: plot.x_names, bounds: plot.y_range, roomX: true,
    fromZero: plot.from_zero, target: plot.target, keys: plot.keys, ticks: plot.unit ? (value) => `${significant(value, 4)}${plot.unit}` : null,
  });
}

// A chart stays in its place, and draws what is new there.
function newChart(place, plot) {
  const reset = element("button", { type: "button", class: "toggle reset", hidden: true, onclick: () => chart.zoom(null, null) }, "Reset zoom");
  const chart = new Chart({ title: plot.title, about: plot.title, written: (value) => `${significant(value, 3)}${plot.unit}`, zoomed: (first) => { reset.hidden = first === null; } });
  chart.heading.after(reset);
  place.replaceChildren(chart.root);
  place.chart = chart;
  return chart;
}

// A chart has one point of a line at each place; points that stand above each other are moved apart invisibly.
function distinct(x) {
  let last = -Infinity;
  return x.map((value) => {
    last = value > last ? value : last + Math.max(1e-9, Math.abs(last) * 1e-9);
    return last;
  });
}

function lanePlot(place, plot) {
  const kinds = plot.kinds.map(([name, color]) => ({ name, color }));
  const panel = new LanesPanel(place, { kinds, clock: plot.clock, label: plot.title, names: plot.rows, texts: plot.texts, until: plot.until, together: plot.together });
  panel.set(plot.spans);
}

function sharePlot(place, { title, clock, bars }, { kinds }) {
  const home = element("div");
  const panel = new BarsPanel(home, { kinds, clock, shares: true });
  panel.set(bars.map(([label, times]) => ({ label, times })));
  const figure = element("figure", { class: "interactive" }, element("h3", {}, title), home);
  figure.rows = () => home.rows();
  place.replaceChildren(figure);
}
