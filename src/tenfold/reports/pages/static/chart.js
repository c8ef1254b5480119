import { element, colorOf, Tip, whenThemeChanges } from "./dom.js";
import { drawBand, drawPoints, FLAG, markerSymbol, pointsAsSvg } from "./marks.js";
import { escaped } from "./saving.js";

// A line chart on uPlot: drag to zoom, double-click to reset, lines that toggle in the legend, values under the cursor.
// Keys, while the chart has the focus: left and right move the cursor, + and - zoom, 0 or Escape resets.

const [HEIGHT, TALL, BROAD] = [240, 340, 640]; // charts that are broader than BROAD are taller
const MARKS = 60; // evaluated curves with at most as many points have markers
const WHOLE = [1, 2, 5].flatMap((one) => [0, 1, 2, 3, 4, 5, 6, 7, 8].map((power) => one * 10 ** power)).sort((a, b) => a - b);
const LOG = 3; // uPlot's number of a logarithmic scale
const NEAR = 30; // how many pixels the pointer may be from a point to show what is known of it
const MOST_BANDS = 3; // with more, only the band of the line at the pointer is drawn
const TICK_ROOM = 30;

export class Chart {
  // `written` turns a value into text; `zoomed(first, last)` is called with null and null after a reset.
  // `synced` charts have the same horizontal axis and show the cursor at the same place.
  constructor({ title, about, written, zoomed, synced = false }) {
    this.written = written;
    this.zoomed = zoomed;
    this.synced = synced;
    this.hidden = new Set();
    this.lines = [];
    this.focused = null;
    this.range = null;
    this.plot = null;
    this.options = { logY: false, logX: false, label: "" };
    this.canvas = element("div", { class: "chart", tabindex: 0, role: "img", "aria-label": about });
    this.legend = element("ul", { class: "legend", "aria-label": "Lines, click to hide or show" });
    this.title = title;
    this.heading = element("h3", {}, title);
    this.tip = new Tip();
    this.root = element("figure", { class: "interactive" }, this.heading, element("div", { class: "frame" }, this.canvas, this.tip.root), this.legend);
    this.root.rows = () => this.rows();
    this.root.vector = () => this.vector();
    this.canvas.addEventListener("keydown", (event) => this.press(event));
    new ResizeObserver(() => this.resize()).observe(this.canvas);
    whenThemeChanges(() => this.plot?.redraw(false));
  }

  // Each line: {key, label, color, dash, width, alpha, marks, x, y, quiet}; quiet ones have no legend entry, and a stepped one is a histogram. Those with
  // notes, the text of each point, may also have markers, fill, low, high, spread, rings and numbers: see charts.py.
  draw(lines, options) {
    const shape = (list) => JSON.stringify(list.map((line) => [line.key, line.label, line.color, line.alpha, line.marks]));
    const same = this.plot && shape(lines) === shape(this.lines) && JSON.stringify(options) === JSON.stringify(this.options);
    if (same) lines.forEach((line, at) => { line.shown = this.lines[at].shown; });
    this.lines = lines;
    this.options = options;
    this.heading.textContent = onScale(this.title, options.logY);
    const data = lines.length ? uPlot.join(lines.map((line) => [line.x, line.y])) : [[], []];
    if (same) {
      this.plot.setData(data, !this.range);
      if (this.range) this.plot.setScale("x", { min: this.range[0], max: this.range[1] });
    } else this.build(data);
    this.showValues();
    this.canvas.setAttribute("aria-label", this.describe());
  }

  describe() {
    const ends = this.lines.filter((line) => !line.quiet && line.y.length).map((line) =>
      `${line.label}: ${this.written(line.y[0])} at first, ${this.written(line.y[line.y.length - 1])} at last`);
    return `${this.heading.textContent} by ${this.options.label}. ${ends.join("; ")}`;
  }

  build(data) {
    this.plot?.destroy();
    const soft = () => colorOf("--soft");
    const grid = { stroke: () => colorOf("--line"), width: 1 };
    const axis = { stroke: soft, grid, ticks: { show: false }, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif" };
    const series = this.lines.map((line) => ({
      label: line.label,
      stroke: () => line.color || colorOf("--ink"),
      width: line.width || 1.5,
      alpha: line.alpha || 1,
      dash: line.dash?.length ? line.dash : undefined,
      spanGaps: true,
      paths: line.scatter ? () => null : line.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
      show: !this.hidden.has(line.key),
      points: { show: line.notes ? false : Boolean(line.scatter) || Boolean(line.marks && line.x.length <= MARKS) || line.x.length === 1, size: line.scatter ? 4 : 6, fill: () => line.color || colorOf("--ink") },
    }));
    this.plot = new uPlot({
      width: Math.max(200, this.canvas.clientWidth), height: heightOf(this.canvas.clientWidth),
      scales: {
        x: { time: false, distr: this.options.logX ? LOG : 1, log: this.options.logX || 10, range: this.options.roomX ? (_, low, high) => this.widths(low, high) : undefined },
        y: { distr: this.options.logY ? LOG : 1, log: this.options.logY || 10, range: this.options.bounds ? (_, low, high) => this.heights(low, high) : this.options.logY ? undefined : padded },
      },
      axes: [
        { ...axis, label: onScale(this.options.label, this.options.logX), labelSize: 18, size: 34, incrs: this.options.whole ? WHOLE : undefined, values: (_, ticks) => ticks.map((value) => this.nameOf(value) ?? tick(value)), ...this.ticksOf("x") },
        { ...axis, size: sizeOf, ...this.ticksOf("y"), values: (_, ticks) => ticks.map((value) => value === null ? "" : this.options.ticks ? this.options.ticks(value) : tick(value)) },
      ],
      series: [{}, ...series],
      legend: { show: false },
      cursor: { drag: { x: true, y: false, dist: 6 }, sync: this.synced ? { key: "tenfold-curves" } : undefined, points: { size: 7, show: !this.lines.some((line) => line.notes) } },
      hooks: {
        drawAxes: [(plot) => this.bands(plot)],
        draw: [(plot) => { this.rules(plot); this.points(plot); }],
        setCursor: [() => { this.showValues(); this.showTip(); }],
        setSelect: [(plot) => {
          if (plot.select.width > 0) this.zoom(plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x"));
        }],
      },
    }, data, this.canvas);
    this.plot.over.addEventListener("dblclick", () => this.zoom(null, null), true);
    if (this.range) this.plot.setScale("x", { min: this.range[0], max: this.range[1] });
    this.buildLegend();
  }

  // Numbers on a logarithmic axis, or where they are given, as many as have room.
  ticksOf(name) {
    const base = name === "x" ? this.options.logX : this.options.logY;
    const given = name === "x" ? this.options.ticksX : null;
    if (!given?.length && !(this.options.bounds && base)) return {};
    const length = () => (name === "x" ? this.canvas.clientWidth : heightOf(this.canvas.clientWidth));
    return {
      splits: (_, __, low, high) => spaced(given?.length ? given : powers(low, high, base), low, high, base, length()),
      filter: (_, splits) => splits,
    };
  }

  // The name of a place on the horizontal axis, where places have names.
  nameOf(value) {
    const { ticksX = [], namesX = [] } = this.options;
    return namesX[ticksX.indexOf(value)];
  }

  // The ends of the horizontal axis, with room for markers beside all that begins elsewhere than at zero.
  widths(low, high) {
    const [left, right] = roomy(low, high, this.options.logX);
    return [this.options.fromZero && !this.range ? 0 : left, right];
  }

  // The ends of the vertical axis: those that are given, else with room for all deviations.
  heights(low, high) {
    const shown = this.lines.filter((line) => !this.hidden.has(line.key));
    const least = Math.min(low ?? Infinity, ...shown.flatMap((line) => line.low || []));
    const most = Math.max(high ?? -Infinity, ...shown.flatMap((line) => line.high || []));
    const [bottom, top] = !(least <= most) ? [0, 1] : this.options.logY ? roomy(least, most, this.options.logY) : padded(null, least, most);
    return [this.options.bounds[0] ?? bottom, this.options.bounds[1] ?? top];
  }

  bands(plot) {
    const banded = this.lines.filter((line) => line.spread === "band" && line.low?.length && !this.hidden.has(line.key));
    for (const line of banded) {
      const focused = line.key === this.focused;
      if (focused || banded.length <= MOST_BANDS) drawBand(plot, line, line.color || colorOf("--ink"), focused ? 0.28 : 0.15);
    }
  }

  points(plot) {
    for (const line of this.lines)
      if (line.notes && !line.reference && !this.hidden.has(line.key)) drawPoints(plot, line, line.color || colorOf("--ink"), colorOf("--page"), colorOf("--ink"));
  }

  // What is known of the point at the pointer.
  showTip() {
    const { left, top } = this.plot.cursor;
    let found = null;
    let best = NEAR;
    for (const line of left >= 0 ? this.lines : [])
      if (line.notes?.length && !this.hidden.has(line.key))
        line.x.forEach((x, at) => {
          const apart = Math.hypot(this.plot.valToPos(x, "x") - left, this.plot.valToPos(line.y[at], "y") - top);
          if (apart < best) [best, found] = [apart, { line, at }];
        });
    this.focus(found?.line.key ?? null);
    if (!found) return this.tip.hide();
    const { offsetLeft, offsetTop } = this.plot.over;
    const x = offsetLeft + this.plot.valToPos(found.line.x[found.at], "x");
    const y = offsetTop + this.plot.valToPos(found.line.y[found.at], "y");
    this.tip.show(found.line.notes[found.at], x, y, { above: true });
  }

  focus(key) {
    if (key === this.focused) return;
    this.focused = key;
    if (this.lines.some((line) => line.spread === "band")) this.plot.redraw(false, false);
  }

  // Dotted lines: down where something happened, across at the target.
  rules(plot) {
    const { left, top, width, height } = plot.bbox;
    const { marks = [], target = null } = this.options;
    const pen = plot.ctx;
    pen.save();
    pen.beginPath();
    pen.rect(left, top, width, height);
    pen.clip();
    pen.strokeStyle = colorOf("--soft");
    pen.setLineDash([3, 4]);
    pen.beginPath();
    for (const at of marks) {
      const x = plot.valToPos(at, "x", true);
      pen.moveTo(x, top);
      pen.lineTo(x, top + height);
    }
    if (target !== null && (!this.options.logY || target > 0)) {
      const y = plot.valToPos(target, "y", true);
      pen.moveTo(left, y);
      pen.lineTo(left + width, y);
    }
    pen.stroke();
    pen.restore();
  }

  buildLegend() {
    const entries = this.lines.filter((line) => !line.quiet).map((line) => {
      const value = element("span", { class: "value" });
      line.shown = line.scatter && line.notes ? null : value;
      return element("li", {}, element("button", {
        type: "button", "aria-pressed": String(!this.hidden.has(line.key)), title: "Hide or show this line",
        onclick: (event) => this.flip(line.key, event.currentTarget),
        onmouseenter: () => this.focus(line.key), onmouseleave: () => this.focus(null),
      }, swatchOf(line), element("span", { class: "name" }, line.label), value));
    });
    const isHollow = (marker) => this.lines.filter((line) => line.markers?.includes(marker)).every((line) => line.fill === "none");
    const keys = (this.options.keys || []).map(([marker, meaning]) => element("li", {}, markerSymbol(marker, isHollow(marker) ? "none" : "full"), meaning));
    if (this.lines.some((line) => line.fill === "none" && !line.markers?.includes(FLAG))) keys.push(element("li", {}, markerSymbol("o", "none"), "hollow: predicted"));
    this.legend.replaceChildren(...entries, ...keys);
  }

  flip(key, button) {
    const hide = !this.hidden.has(key);
    if (hide) this.hidden.add(key);
    else this.hidden.delete(key);
    button?.setAttribute("aria-pressed", String(!hide));
    this.lines.forEach((line, at) => {
      if (line.key === key || line.key === `${key} raw`) this.plot.setSeries(at + 1, { show: !hide });
    });
  }

  // The values at the cursor, else the last ones where these are what a line has come to.
  showValues() {
    if (!this.plot) return;
    const { left } = this.plot.cursor;
    const at = left >= 0 ? this.plot.posToVal(left, "x") : null;
    for (const line of this.lines) {
      if (!line.shown || !line.x.length) continue;
      if (at === null && this.options.lastValues === false) {
        line.shown.textContent = "";
        continue;
      }
      const place = at === null ? line.x.length - 1 : nearest(line.x, at);
      line.shown.textContent = this.written(at !== null && line.reference ? between(line, at) : line.y[place]);
    }
  }

  zoom(first, last, silent = false) {
    if (!this.plot) return;
    this.range = first === null || !(last > first) ? null : [first, last];
    this.plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    if (this.range) this.plot.setScale("x", { min: first, max: last });
    else this.plot.setData(this.plot.data, true);
    if (!silent) this.zoomed?.(...(this.range || [null, null]));
  }

  press(event) {
    if (!this.plot) return;
    const { min, max } = this.plot.scales.x;
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    if (event.key in steps) {
      const from = this.plot.cursor.left >= 0 ? this.plot.cursor.left : this.plot.over.clientWidth / 2;
      this.plot.setCursor({ left: Math.min(this.plot.over.clientWidth, Math.max(0, from + 8 * steps[event.key])), top: 40 });
    } else if (event.key === "+" || event.key === "-") {
      const middle = this.plot.cursor.left >= 0 ? this.plot.posToVal(this.plot.cursor.left, "x") : (min + max) / 2;
      const factor = event.key === "+" ? 0.5 : 2;
      this.zoom(middle - (middle - min) * factor, middle + (max - middle) * factor);
    } else if (event.key === "0" || event.key === "Escape") this.zoom(null, null);
    else return;
    event.preventDefault();
  }

  // The numbers of all lines that are shown.
  rows() {
    const shown = this.lines.filter((line) => !this.hidden.has(line.key) && !line.key.endsWith(" raw"));
    const spread = shown.some((line) => line.low?.length);
    const head = ["line", this.options.label, this.heading.textContent, ...(spread ? ["low", "high"] : [])];
    return [head, ...shown.flatMap((line) => [...line.x].map((x, at) => [line.label, x, line.y[at], ...(spread ? [line.low?.[at], line.high?.[at]] : [])]))];
  }

  // The chart without its legend as the content of an SVG.
  vector() {
    const plot = this.plot;
    const scale = devicePixelRatio || 1;
    const [left, top, width, height] = ["left", "top", "width", "height"].map((name) => plot.bbox[name] / scale);
    const place = (value, axis) => plot.valToPos(value, axis, true) / scale;
    const soft = colorOf("--soft");
    const texts = [];
    const rules = [];
    plot.axes.forEach((axis, at) => (axis._splits || []).forEach((value, tick) => {
      if (value === null || !axis._values?.[tick]) return;
      const position = place(value, at ? "y" : "x");
      rules.push(at ? `M${left} ${position}h${width}` : `M${position} ${top}v${height}`);
      texts.push(at ? `<text x="${left - 6}" y="${position + 4}" text-anchor="end">${escaped(axis._values[tick])}</text>` : `<text x="${position}" y="${top + height + 16}" text-anchor="middle">${escaped(axis._values[tick])}</text>`);
    }));
    texts.push(`<text x="${left + width / 2}" y="${top + height + 34}" text-anchor="middle">${escaped(onScale(this.options.label, this.options.logX))}</text>`);
    const lines = this.lines.filter((line) => !this.hidden.has(line.key)).map((line) => {
      const points = [...line.x].map((x, at) => [place(x, "x"), place(line.y[at], "y")]);
      const color = line.color || colorOf("--ink");
      const marked = line.notes ? !line.reference : line.scatter || (line.marks && line.x.length <= MARKS) || line.x.length === 1;
      const path = line.scatter ? "" : `<polyline points="${points.map((point) => point.join(",")).join(" ")}" fill="none" stroke="${color}" stroke-width="${line.width || 1.5}" stroke-opacity="${line.alpha || 1}"${line.dash?.length ? ` stroke-dasharray="${line.dash.join(" ")}"` : ""}/>`;
      return path + (marked ? pointsAsSvg(line, points, color, colorOf("--page"), (value) => place(value, "y")) : "");
    });
    const target = this.options.target ?? null;
    const across = target === null ? "" : `<path d="M${left} ${place(target, "y")}h${width}" stroke="${soft}" stroke-dasharray="3 4"/>`;
    return `<defs><clipPath id="plot"><rect x="${left - 6}" y="${top - 6}" width="${width + 12}" height="${height + 12}"/></clipPath></defs>`
      + `<path d="${rules.join("")}" stroke="${colorOf("--line")}"/>${across}<g clip-path="url(#plot)">${lines.join("")}</g><g font-size="12" fill="${soft}">${texts.join("")}</g>`;
  }

  resize() {
    const width = this.canvas.clientWidth;
    if (this.plot && width && width !== this.plot.width) this.plot.setSize({ width, height: heightOf(width) });
  }
}

function heightOf(width) {
  return width > BROAD ? TALL : HEIGHT;
}

function onScale(name, log) {
  return log ? `${name}, log scale` : name;
}

function padded(_, low, high) {
  if (low === null || high === null) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

// Both ends moved outwards, so that markers are not cut.
function roomy(low, high, base) {
  if (low === null || high === null) return [1, 2];
  if (base) return [low / 1.15, high * 1.15];
  const apart = high - low > 1e-6 * Math.abs(high) ? high - low : Math.abs(high) || 1;
  return [low - apart * 0.05, high + apart * 0.05];
}

function powers(low, high, base) {
  const found = [];
  const steps = base === 10 && high / low < 1000 ? [1, 2, 5] : [1];
  for (let power = Math.floor(Math.log(low) / Math.log(base)); base ** power <= high; power++)
    for (const step of steps) found.push(step * base ** power);
  return found;
}

// As many of these numbers, from the left, as have room beside each other.
function spaced(numbers, low, high, base, length) {
  const place = (value) => (base ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low)) * length;
  const kept = [];
  for (const value of numbers)
    if (value >= low && value <= high && (!kept.length || place(value) - place(kept[kept.length - 1]) >= TICK_ROOM)) kept.push(value);
  return kept;
}

function between({ x, y }, at) {
  const after = x.findIndex((one) => one >= at);
  if (after <= 0) return after ? y[y.length - 1] : y[0];
  return y[after - 1] + ((y[after] - y[after - 1]) * (at - x[after - 1])) / (x[after] - x[after - 1]);
}

function swatchOf(line) {
  if (line.scatter && line.notes) return markerSymbol("o", line.fill, line.color);
  const stroke = element("span", { class: "line", style: { borderTopColor: line.color || "currentColor", borderTopStyle: line.dash?.length ? "dashed" : "solid", borderTopWidth: line.marks ? "2.5px" : "1.5px", opacity: line.alpha || 1 } });
  return line.notes && !line.reference ? element("span", { class: "marked" }, stroke, markerSymbol(line.markers?.[0] || "o", line.fill, line.color)) : stroke;
}

function tick(value) {
  if (value === null) return "";
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-4)) return value.toExponential().replace("e+", "e");
  return value.toLocaleString("en-US", { maximumFractionDigits: 6 });
}

function sizeOf(plot, texts) {
  const longest = Math.max(0, ...(texts || []).map((text) => String(text).length));
  return Math.min(90, 16 + 7 * longest);
}

function nearest(x, at) {
  let low = 0;
  let high = x.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (x[middle] < at) low = middle;
    else high = middle;
  }
  return at - x[low] < x[high] - at ? low : high;
}
