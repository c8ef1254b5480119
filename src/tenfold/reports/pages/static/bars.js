import { element } from "./dom.js";
import { duration, percent } from "./format.js";

// What the time is spent on: one bar a setting, divided by kind, with the numbers below the pointer and for screen readers.

export class BarsPanel {
  // `shares` are parts of one; else times are seconds.
  constructor(root, { kinds, clock, shares = false }) {
    this.root = root;
    this.shares = shares;
    this.kinds = kinds;
    this.clock = clock;
  }

  set(bars) {
    const sums = bars.map((bar) => Object.values(bar.times).reduce((sum, one) => sum + one, 0));
    const longest = Math.max(...sums, 0);
    if (!longest) {
      this.root.replaceChildren();
      return;
    }
    const used = this.kinds.filter(({ kind }) => bars.some((bar) => bar.times[kind]));
    const legend = element("ul", { class: "legend kinds" }, used.map(({ kind, name, color }) =>
      element("li", {}, element("span", { class: "swatch", style: { background: color } }), name,
        bars.length === 1 ? element("span", { class: "value" }, `${duration(bars[0].times[kind])}, ${percent(bars[0].times[kind] / sums[0])}`) : "")));
    const rows = bars.map((bar, at) => {
      const parts = used.filter(({ kind }) => bar.times[kind]).map(({ kind, name, color }) =>
        element("span", {
          class: "part", style: { width: `${(100 * bar.times[kind]) / longest}%`, background: color },
          title: `${bar.label ? `${bar.label}, ` : ""}${name}: ${this.shares ? "" : `${duration(bar.times[kind])}, `}${percent(bar.times[kind] / sums[at])}`,
        }));
      const told = this.shares ? percent : duration;
      const about = used.filter(({ kind }) => bar.times[kind]).map(({ kind, name }) => `${name} ${told(bar.times[kind])}`).join(", ");
      return element("div", { class: `bar-row${this.shares ? " share-row" : ""}` },
        bar.label ? element("span", { class: "bar-name" }, bar.label) : "",
        element("div", { class: "bar", role: "img", "aria-label": `${bar.label || "This run"}: ${about}, ${this.clock}` }, parts),
        element("span", { class: "bar-sum" }, this.shares ? `${percent(bar.times.compute || 0)} compute` : duration(sums[at])));
    });
    this.root.replaceChildren(legend, ...rows);
    this.root.rows = () => [["setting", "kind", this.shares ? "share" : `seconds, ${this.clock}`], ...bars.flatMap((bar) => used.map(({ kind, name }) => [bar.label, name, bar.times[kind] ?? 0]))];
  }
}
