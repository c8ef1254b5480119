import { drawing, element, Tip } from "./dom.js";
import { niceTicks, significant } from "./format.js";

// Repeated measurements as strips of points on one axis, each with its mean and interval below it.

const ROW = 62;
const DOT = 4.5;
const FOOT = 24;
const SIDE = 12;

export function stripPlot(place, { title, unit, strips }) {
  const home = element("div", { class: "frame" });
  const tip = new Tip();
  const figure = element("figure", { class: "interactive" }, element("h3", {}, unit ? `${title} (${unit})` : title), home);
  figure.rows = () => [["strip", title, "note"], ...strips.flatMap((strip) => strip.values.map((value, at) => [strip.name, value, strip.notes[at]]))];
  place.replaceChildren(figure);

  function draw() {
    const width = home.clientWidth;
    if (!width) return;
    const ends = strips.flatMap((strip) => [...strip.values, strip.low, strip.high].filter((value) => value !== null && value !== undefined));
    const [low, high] = [Math.min(...ends), Math.max(...ends)];
    const left = 8 + 7 * Math.max(...strips.map((strip) => strip.name.length));
    const place = (value) => left + SIDE + (high > low ? (value - low) / (high - low) : 0.5) * (width - left - 2 * SIDE);
    const height = strips.length * ROW + FOOT;
    const ticks = niceTicks(low, high, Math.max(2, Math.floor((width - left) / 90)));
    const grid = ticks.map((tick) => drawing("g", {},
      drawing("line", { x1: place(tick), x2: place(tick), y1: 0, y2: height - FOOT, class: "grid-line" }),
      drawing("text", { x: place(tick), y: height - 6, "text-anchor": "middle" }, significant(tick, 5))));
    const rows = strips.map((strip, at) => stripRow(strip, at * ROW + ROW / 2 - 8, place, tip));
    const about = strips.map((strip) => `${strip.name}: ${strip.about || strip.notes.join(", ")}`).join("; ");
    home.replaceChildren(drawing("svg", { class: "strip", role: "img", "aria-label": `${title}. ${about}`, width, height, viewBox: `0 0 ${width} ${height}` }, grid, rows), tip.root);
    home.querySelectorAll("[data-hit]").forEach((one) => one.addEventListener("pointerleave", () => tip.hide()));
  }

  new ResizeObserver(draw).observe(home);
}

function stripRow(strip, middle, place, tip) {
  const hit = (shape, text, x, y) => {
    shape.dataset.hit = "";
    for (const event of ["pointerenter", "click"]) shape.addEventListener(event, () => tip.show(text, x, y));
    return shape;
  };
  const levels = apart(strip.values.map(place));
  const dots = strip.values.map((value, at) => {
    const [x, y] = [place(value), middle + levels[at] * 2 * DOT];
    return hit(drawing("circle", { cx: x, cy: y, r: DOT, fill: strip.color, "fill-opacity": 0.8 }), `${strip.name}, ${strip.notes[at]}`, x, y);
  });
  const below = middle + 24;
  const mean = [];
  if (strip.low !== null && strip.high !== null) mean.push(drawing("line", { x1: place(strip.low), x2: place(strip.high), y1: below, y2: below, class: "interval-line" }));
  if (strip.mean !== null) {
    const x = place(strip.mean);
    mean.push(hit(drawing("path", { d: `M${x} ${below - 6}L${x + 6} ${below}L${x} ${below + 6}L${x - 6} ${below}Z`, fill: "currentColor" }), `${strip.name}, ${strip.about}`, x, below));
  }
  return drawing("g", {}, drawing("text", { x: 0, y: middle + 4 }, strip.name), dots, mean);
}

// Levels at which points do not hide each other: 0, 1 above, 1 below, 2 above, ...
function apart(places) {
  const taken = [];
  return places.map((x) => {
    for (let turn = 0; turn < 7; turn++) {
      const level = Math.ceil(turn / 2) * (turn % 2 ? -1 : 1);
      if (Math.abs(level) < 2 && taken.every(([other, at]) => at !== level || Math.abs(other - x) >= 2 * DOT)) {
        taken.push([x, level]);
        return level;
      }
    }
    return 0;
  });
}
