import { element, choice, toggle } from "./dom.js";
import { count, isPercent, metricValue, significant } from "./format.js";
import { Chart } from "./chart.js";

// Learning curves of one run or several: by epoch, step or training time, with log axes, smoothing and zoom.

const FIRST = ["loss", "accuracy"];
const LAST = ["lr", "spread", "staleness", "samples/s"];
const NAMES = { lr: "learning rate", "samples/s": "samples per second", staleness: "staleness (updates)", spread: "spread of the replicas before a round, relative" };
const HIDDEN = new Set(["epoch_loss", "epoch_accuracy", "memory", "gpu_memory"]);
const AXES = { epoch: "epoch", step: "step", seconds: "training time" };
const PARTS = { train: "training", validation: "validation", test: "test" };

export class CurvesPanel {
  // `refine(first, last)` is asked for more points between two steps; it is null where all points are there.
  constructor(root, { clock, refine = null }) {
    this.root = root;
    this.clock = clock;
    this.refine = refine;
    this.figures = [];
    this.charts = new Map();
    this.over = "epoch";
    this.smoothing = 0;
    this.log = { x: false, y: false };
    this.plots = element("div", { class: "plots" });
    this.more = element("div", { class: "plots" });
    this.details = element("details", { hidden: true }, element("summary", {}, "Learning rate, speed and replicas"), this.more);
    this.details.addEventListener("toggle", () => this.draw());
    this.reset = element("button", { type: "button", class: "toggle", hidden: true, onclick: () => this.zoom(null, null) }, "Reset zoom");
    const slider = element("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: 0, oninput: () => { this.smoothing = Number(slider.value); this.draw(); } });
    root.replaceChildren(
      element("div", { class: "controls" },
        choice("Horizontal axis", [["epoch", "by epoch"], ["step", "by step"], ["seconds", "by training time"]], this.over, (over) => { this.over = over; this.zoom(null, null); this.draw(); }),
        toggle("log x", false, (on) => { this.log.x = on; this.draw(); }),
        toggle("log y", false, (on) => { this.log.y = on; this.draw(); }),
        element("label", { class: "slider" }, "smoothing", slider),
        this.reset),
      this.plots, this.details);
  }

  set(figures) {
    this.figures = figures;
    this.draw();
  }

  // The names of all metrics, those of training itself last.
  metrics() {
    const found = new Set(this.figures.flatMap((figure) => figure.curves.map((curve) => curve.name)));
    if (found.has("epoch_accuracy")) found.add("accuracy");
    HIDDEN.forEach((name) => found.delete(name));
    if (this.figures.some((figure) => figure.samples && figure.epochLength)) found.add("samples/s");
    const others = [...found].filter((name) => !FIRST.includes(name) && !LAST.includes(name));
    return [...FIRST, ...others, ...LAST].filter((name) => found.has(name));
  }

  draw() {
    const names = this.metrics();
    for (const name of names) {
      const lines = this.linesOf(name);
      if (!lines.length) continue;
      const home = LAST.includes(name) ? this.more : this.plots;
      if (!this.charts.has(name)) {
        const chart = new Chart({ title: NAMES[name] || name, about: name, synced: true, written: (value) => written(name, value), zoomed: (first, last) => this.zoom(first, last, chart) });
        this.charts.set(name, chart);
        home.append(chart.root);
      }
      if (home === this.more) {
        this.details.hidden = false;
        if (!this.details.open) continue;
      }
      const label = this.over === "seconds" ? `training time (s, ${this.clock})` : AXES[this.over];
      this.charts.get(name).draw(lines, {
        label, whole: this.over === "step" || (this.over === "epoch" && lines.some((line) => line.x[line.x.length - 1] >= 2)), logX: this.log.x && 10, logY: this.log.y && positive(lines) && 10, ...this.rulesOf(name), ticks: isPercent(name) ? (value) => `${significant(100 * value, 4)}%` : null,
      });
    }
  }

  // Where workers were lost, of a run that is shown alone, and the target of the metric that it is for.
  rulesOf(name) {
    const [figure, ...others] = this.figures;
    const targets = new Set(this.figures.map((one) => one.target ?? null));
    const first = this.metrics().find((one) => one !== "loss") || "loss";
    return {
      marks: others.length ? [] : (figure.marks || []).map((mark) => mark[this.over]),
      target: name === first && targets.size === 1 ? [...targets][0] : null,
    };
  }

  linesOf(name) {
    const several = this.figures.length > 1;
    const withTraining = !several || this.figures.length <= 3;
    return this.figures.flatMap((figure) => {
      const curves = name === "samples/s" ? speedOf(figure) : fewWorkers(figure.curves.filter((curve) => curve.name === name || (name === "accuracy" && curve.name === "epoch_accuracy"))).sort((a, b) => a.worker - b.worker);
      const evaluated = curves.some((curve) => curve.part !== "train");
      return curves.filter((curve) => withTraining || !evaluated || curve.part !== "train").flatMap((curve) => this.lineOf(figure, curve, curves, several));
    });
  }

  lineOf(figure, curve, all, several) {
    const training = curve.part === "train";
    const workers = all.some((one) => one.worker > 0);
    const words = [several ? figure.label : "", all.some((one) => one.part !== "train") || !several ? PARTS[curve.part] || curve.part : "", workers ? curve.title || `worker ${curve.worker}` : ""];
    const x = this.positions(figure, curve);
    let y = curve.value;
    if (this.log.x || this.log.y) {
      const kept = x.map((one, at) => (!this.log.x || one > 0) && (!this.log.y || y[at] > 0));
      y = y.filter((_, at) => kept[at]);
      x.splice(0, x.length, ...x.filter((_, at) => kept[at]));
    }
    if (!x.length) return [];
    const key = `${figure.id} ${figure.label} ${curve.part} ${curve.worker}`;
    const common = {
      key, label: words.filter(Boolean).join(", ") || curve.name, color: workers && !several ? shade(figure.color, curve.worker) : !several && curve.part === "validation" ? "#e17800" : figure.color, dash: figure.dash,
      width: training ? 1 : 1.8, marks: !training, alpha: training && !workers ? 0.9 : 1, x, y,
    };
    if (!training || !this.smoothing) return [common];
    return [{ ...common, key: `${key} raw`, alpha: 0.25, quiet: true }, { ...common, width: 1.5, alpha: 1, y: smooth(y, this.smoothing) }];
  }

  positions(figure, curve) {
    if (this.over === "seconds") return [...curve.seconds];
    if (this.over === "step" || !figure.epochLength) return [...curve.step];
    return curve.step.map((step) => step / figure.epochLength);
  }

  zoom(first, last, source = null) {
    this.reset.hidden = first === null;
    for (const chart of this.charts.values()) if (chart !== source) chart.zoom(first, last, true);
    if (!this.refine) return;
    const lengths = this.figures.map((figure) => figure.epochLength || 1);
    const longest = Math.max(1, ...lengths);
    const steps = { step: (at) => at, epoch: (at) => at * longest, seconds: (at) => this.stepAt(at) }[this.over];
    this.refine(first === null ? null : steps(first), last === null ? null : steps(last));
  }

  stepAt(seconds) {
    const steps = this.figures.flatMap((figure) => figure.curves).map((curve) => {
      const place = curve.seconds.findIndex((one) => one >= seconds);
      return curve.step[place < 0 ? curve.step.length - 1 : place] || 0;
    });
    return Math.max(0, ...steps);
  }
}

function written(name, value) {
  if (name === "samples/s") return count(value);
  return isPercent(name) ? metricValue(name, value) : significant(value, 4);
}

// What more than eight workers measured: the mean and the highest at each step.
export function fewWorkers(curves) {
  if (curves.length <= 8 || !curves.every((curve) => curve.part === curves[0].part)) return curves;
  const steps = new Map();
  for (const curve of curves) curve.step.forEach((step, at) => steps.set(step, [...(steps.get(step) || []), [curve.seconds[at], curve.value[at]]]));
  const sorted = [...steps].sort(([a], [b]) => a - b);
  const common = { ...curves[0], step: sorted.map(([step]) => step), seconds: sorted.map(([, points]) => Math.max(...points.map(([seconds]) => seconds))) };
  const values = (pick) => sorted.map(([, points]) => pick(points.map(([, value]) => value)));
  return [
    { ...common, worker: 0, title: `mean of ${curves.length} workers`, value: values((list) => list.reduce((sum, one) => sum + one, 0) / list.length) },
    { ...common, worker: 1, title: "highest", value: values((list) => Math.max(...list)) },
  ];
}

function positive(lines) {
  return lines.every((line) => line.y.every((value) => value > 0));
}

// The exponential mean of the values so far, as TensorBoard has it: without a bias towards 0 at the beginning.
function smooth(values, weight) {
  let last = 0;
  return values.map((value, at) => {
    last = last * weight + (1 - weight) * value;
    return last / (1 - weight ** (at + 1));
  });
}

function speedOf(figure) {
  const timed = figure.curves.find((curve) => curve.name === "loss" && curve.part === "train" && !curve.worker);
  if (!timed || !figure.samples || !figure.epochLength || timed.step.length < 2) return [];
  const points = { name: "samples/s", part: "train", worker: 0, step: [], seconds: [], value: [] };
  let before = 0;
  timed.step.forEach((step, at) => {
    const passed = timed.seconds[at] - (at ? timed.seconds[before] : 0);
    const steps = step - (at ? timed.step[before] : 0);
    if (!(passed > 0) || !(steps > 0)) return;
    points.step.push(step);
    points.seconds.push(timed.seconds[at]);
    points.value.push((figure.samples / figure.epochLength) * steps / passed);
    before = at;
  });
  return [points];
}

const SHADES = ["#2d69d2", "#e17800", "#4ba55a", "#b42d87", "#a587d2", "#5a694b", "#c31e0f", "#d27896"];

export function shade(color, worker) {
  return worker ? SHADES[worker % SHADES.length] : color;
}
