import { Chart } from "./chart.js";
import { fewWorkers, shade } from "./curves.js";
import { significant } from "./format.js";

// The memory of a run's workers after each epoch.

const KINDS = { memory: "Memory in use after each epoch", gpu_memory: "GPU memory: the most allocated until each epoch" };
const UNITS = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];

export class MemoryPanel {
  constructor(root) {
    this.root = root;
    this.charts = new Map();
  }

  set(figure) {
    for (const [kind, title] of Object.entries(KINDS)) {
      const all = (figure?.curves.filter((curve) => curve.name === kind && curve.step.length > 1) || []).sort((a, b) => a.worker - b.worker);
      if (!all.length) continue;
      const curves = fewWorkers(all);
      const [size, unit] = UNITS.find(([one]) => curves.some((curve) => Math.max(...curve.value) >= one)) || UNITS.at(-1);
      const lines = curves.map((curve) => ({
        key: `${curve.worker}`, label: curve.title || `worker ${curve.worker}`, color: shade(figure.color, curve.worker), marks: true,
        x: curve.step.map((step) => step / (figure.epochLength || 1)), y: curve.value.map((value) => value / size),
      }));
      if (!this.charts.has(kind)) {
        const chart = new Chart({ title: "", about: title, written: (value) => `${significant(value, 3)} ${chart.unit}`, zoomed: () => {} });
        this.charts.set(kind, chart);
        this.root.append(chart.root);
      }
      const chart = this.charts.get(kind);
      chart.unit = unit;
      chart.title = `${title} (${unit})`;
      chart.draw(lines, { label: figure.epochLength ? "epoch" : "step", whole: lines.some((line) => line.x.at(-1) >= 2), bounds: [0, null] });
    }
  }
}
