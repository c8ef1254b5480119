import { element, Tip } from "./dom.js";

// Rows of bars, a column for each measure and a bar for each series, with values under the pointer; see charts.py.

export function barTable(place, plot) {
  const tip = new Tip();
  const grid = element("div", { class: `bar-table${plot.one_line ? " one-line" : ""}`, style: { gridTemplateColumns: `minmax(5rem, max-content) repeat(${plot.measures.length}, minmax(0, 1fr))` } });
  const frame = element("div", { class: "frame" }, grid, tip.root);
  const named = plot.measures.some(Boolean);
  // The texts of a column are equally wide, so that its bars have one scale.
  const wide = plot.measures.map((_, at) => Math.max(0, ...plot.rows.flatMap(([, cells]) => cells[at].map((part) => part.text.length))));
  if (named) grid.append(element("span", { class: "corner" }), ...plot.measures.map((name) => element("span", { class: "measure" }, name)));
  for (const [name, cells] of plot.rows) {
    grid.append(element("span", { class: "bar-name" }, name));
    cells.forEach((parts, at) => grid.append(cellOf(name, parts, plot, at, wide[at], ({ clientX, clientY }, part) => {
      const { left, top } = frame.getBoundingClientRect();
      if (part?.note) tip.show(part.note, clientX - left, clientY - top, { above: true });
      else tip.hide();
    })));
  }
  const figure = element("figure", { class: "interactive" }, element("h3", {}, plot.title), frame, legendOf(grid, plot));
  figure.rows = () => [["row", "measure", "series", "value", "note"], ...plot.rows.flatMap(([name, cells]) => cells.flatMap((parts, at) => parts.map((part) => [name, plot.measures[at], plot.series[part.series][0], part.text, part.note])))];
  place.replaceChildren(figure);
}

function cellOf(name, parts, plot, at, wide, show) {
  const drawn = parts.map((part) => {
    const bar = element("span", {
      class: `part${part.striped ? " striped" : ""}`,
      style: { left: `${100 * part.begin}%`, width: `${100 * (part.end - part.begin)}%`, backgroundColor: plot.series[part.series][1] },
    });
    return { part, bar };
  });
  const listened = (made, part) => {
    made.addEventListener("pointermove", (event) => show(event, part));
    made.addEventListener("pointerleave", (event) => show(event, null));
    return made;
  };
  const zero = () => (plot.zeros[at] > 0 ? element("span", { class: "zero", style: { left: `${100 * plot.zeros[at]}%` } }) : null);
  const heading = plot.measures[at] ? element("span", { class: "measure" }, plot.measures[at]) : null;
  const lines = plot.one_line
    ? [element("div", { class: "bar-line" }, element("div", { class: "track", role: "img", "aria-label": parts.map((part) => part.note).join("; ") },
      drawn.map(({ part, bar }) => { bar.dataset.series = part.series; return listened(bar, part); })))]
    : drawn.map(({ part, bar }) => listened(element("div", { class: "bar-line", "data-series": part.series },
      element("div", { class: "track", role: "img", "aria-label": part.note || `${name}: ${part.text}` }, zero(), bar), element("span", { class: "value", style: { minWidth: `${wide}ch` } }, part.text)), part));
  return element("div", { class: "bar-cell" }, lines.length ? heading : null, lines);
}

function legendOf(grid, { series, stripes }) {
  const entries = series.length < 2 ? [] : series.map(([name, color], number) => element("li", {}, element("button", {
    type: "button", "aria-pressed": "true", title: "Hide or show these bars",
    onclick: ({ currentTarget }) => {
      const show = currentTarget.getAttribute("aria-pressed") !== "true";
      currentTarget.setAttribute("aria-pressed", String(show));
      grid.querySelectorAll(`[data-series="${number}"]`).forEach((one) => { one.hidden = !show; });
    },
  }, element("span", { class: "swatch", style: { background: color } }), element("span", { class: "name" }, name))));
  const striped = stripes ? element("li", {}, element("span", { class: "swatch striped", style: { backgroundColor: "var(--soft)" } }), stripes) : null;
  return element("ul", { class: "legend", "aria-label": "Bars, click to hide or show" }, entries, striped);
}
