import { element, colorOf, Tip, toggle, whenThemeChanges } from "./dom.js";
import { duration, niceTicks } from "./format.js";

// One lane a worker: when it computed, waited, communicated and read data. Drag to zoom, double-click to reset; keys as in charts.

const LANE = 22;
const GAP = 6;
const AXIS = 26;
const MICRO = 1e6;
const RECENT = 5; // seconds that are shown of a run while it is followed

export class LanesPanel {
  // `refine(first, last)` may answer with finer spans between two times; null where all are there.
  // `names` of lanes are those of workers where they are not given; `texts` are written into spans that have room;
  // `until` are the seconds that the axis shows; `together` lanes stand close to each other.
  constructor(root, { kinds, clock, label = "What the workers did", names = null, texts = [], until = null, together = 1, refine = null, live = false }) {
    this.kinds = kinds;
    this.clock = clock;
    this.label = label;
    this.names = names;
    this.texts = texts;
    this.until = until;
    this.together = together;
    this.refine = refine;
    this.spans = { worker: [], kind: [], at: [], length: [] };
    this.range = null;
    this.origin = 0;
    this.follow = live;
    this.drag = null;
    this.canvas = element("canvas", { tabindex: 0, role: "img", "aria-label": label });
    this.tip = new Tip();
    this.legend = element("ul", { class: "legend kinds" });
    this.reset = element("button", { type: "button", class: "toggle", hidden: true, onclick: () => this.zoom(null) }, "Show all");
    this.followButton = live ? toggle(`last ${RECENT} seconds`, true, (on) => { this.follow = on; this.zoom(null); }) : null;
    root.replaceChildren(element("div", { class: "controls" }, this.legend, this.followButton, this.reset), element("div", { class: "lanes" }, this.canvas, this.tip.root));
    root.rows = () => [["lane", "kind", "begin, s", `seconds, ${clock}`], ...this.spans.at.map((at, place) => [names?.[this.spans.worker[place]] ?? `worker ${this.spans.worker[place]}`, kinds[this.spans.kind[place]].name, at / MICRO, this.spans.length[place] / MICRO])];
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement);
    whenThemeChanges(() => this.draw());
  }

  listen() {
    const at = (event) => event.clientX - this.canvas.getBoundingClientRect().left;
    this.canvas.addEventListener("pointerdown", (event) => {
      this.drag = { from: at(event), to: at(event) };
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (this.drag) {
        this.drag.to = at(event);
        this.draw();
      } else this.hover(at(event), event.clientY - this.canvas.getBoundingClientRect().top);
    });
    this.canvas.addEventListener("pointerup", () => {
      const drag = this.drag;
      this.drag = null;
      if (drag && Math.abs(drag.to - drag.from) > 6) this.zoom([this.timeAt(Math.min(drag.from, drag.to)), this.timeAt(Math.max(drag.from, drag.to))]);
      else this.draw();
    });
    this.canvas.addEventListener("pointerleave", () => this.tip.hide());
    this.canvas.addEventListener("dblclick", () => this.zoom(null));
    this.canvas.addEventListener("keydown", (event) => this.press(event));
  }

  set(spans) {
    this.spans = spans;
    // Predicted times count from the start of the virtual cluster, wherever that lies in the run.
    this.origin = this.clock === "predicted" && spans.at.length ? spans.at.reduce((least, one) => Math.min(least, one)) / MICRO : 0;
    const used = new Set(spans.kind);
    this.legend.replaceChildren(...this.kinds.filter((_, at) => used.has(at)).map(({ name, color }) =>
      element("li", {}, element("span", { class: "swatch", style: { background: color } }), name)));
    this.draw();
  }

  // From the first step to the end: the startup would take most of the width of a short run.
  bounds() {
    if (this.until) return [0, this.until];
    const { at, length, kind } = this.spans;
    const start = this.kinds.findIndex((one) => one.kind === "start");
    const onlyStart = kind.every((one) => one === start);
    let first = Infinity;
    let last = -Infinity;
    for (let i = 0; i < at.length; i++) {
      if (kind[i] === start && !onlyStart) continue;
      first = Math.min(first, at[i]);
      last = Math.max(last, at[i] + length[i]);
    }
    return first < last ? [first / MICRO, last / MICRO] : [0, 1];
  }

  shown() {
    if (this.range) return this.range;
    const [first, last] = this.bounds();
    return this.follow && last - first > RECENT ? [last - RECENT, last] : [first, last];
  }

  timeAt(x) {
    const [first, last] = this.shown();
    return first + ((x - this.left) / (this.width - this.left)) * (last - first);
  }

  draw() {
    const workers = this.names?.length || this.spans.worker.reduce((most, one) => Math.max(most, one), 0) + 1;
    const scale = devicePixelRatio || 1;
    const lane = workers > 32 ? 10 : LANE;
    const gap = this.together > 1 ? 2 : workers > 32 ? 2 : GAP;
    this.tops = Array.from({ length: workers + 1 }, (_, at) => at * (lane + gap) + (this.together > 1 ? Math.floor(at / this.together) * 2 * GAP : 0));
    this.width = this.canvas.parentElement.clientWidth;
    const height = this.tops[workers - 1] + lane + gap + AXIS;
    this.canvas.style.height = `${height}px`;
    if (!this.width) return;
    this.canvas.width = this.width * scale;
    this.canvas.height = height * scale;
    const pen = this.canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const named = workers > 1 || this.names;
    const longest = named ? Math.max(...this.tops.slice(0, workers).map((_, at) => pen.measureText(this.nameOf(at)).width)) : 0;
    this.left = named ? Math.ceil(longest) + 10 : 0;
    const [first, last] = this.shown();
    const across = (this.width - this.left) / (last - first);
    pen.fillStyle = colorOf("--soft");
    for (let worker = 0; worker < workers && named; worker++)
      if (workers <= 64 || worker % 8 === 0) pen.fillText(this.nameOf(worker), 0, this.tops[worker] + lane / 2);
    this.axis(pen, first, last, height);
    pen.save();
    pen.beginPath();
    pen.rect(this.left, 0, this.width - this.left, height);
    pen.clip();
    const { worker, kind, at, length } = this.spans;
    for (let i = 0; i < at.length; i++) {
      const begin = this.left + (at[i] / MICRO - first) * across;
      const wide = (length[i] / MICRO) * across;
      if (begin + wide < this.left || begin > this.width) continue;
      pen.fillStyle = this.kinds[kind[i]].color;
      pen.fillRect(begin, this.tops[worker[i]], Math.max(this.texts.length ? wide - 1 : wide, 0.4), lane);
      if (this.texts[i]) this.write(pen, this.texts[i], Math.max(begin, this.left), Math.min(begin + wide, this.width), this.tops[worker[i]] + lane / 2);
    }
    if (this.drag) {
      pen.fillStyle = colorOf("--accent");
      pen.globalAlpha = 0.25;
      pen.fillRect(Math.min(this.drag.from, this.drag.to), 0, Math.abs(this.drag.to - this.drag.from), height - AXIS);
    }
    pen.restore();
    this.canvas.setAttribute("aria-label", `${this.label}: ${workers} lane${workers > 1 ? "s" : ""} from ${duration(first - this.origin)} to ${duration(last - this.origin)}, ${this.clock}`);
    this.reset.hidden = !this.range;
  }

  nameOf(lane) {
    return this.names?.[lane] ?? `worker ${lane}`;
  }

  write(pen, text, begin, end, y) {
    const fitting = [text, text.split(" ").pop()].find((one) => pen.measureText(one).width < end - begin - 6);
    if (!fitting) return;
    pen.fillStyle = "#fff";
    pen.textAlign = "center";
    pen.fillText(fitting, (begin + end) / 2, y);
    pen.textAlign = "left";
  }

  axis(pen, first, last, height) {
    const longest = last - this.origin;
    const [factor, name] = longest < 0.01 ? [1e6, "µs"] : longest < 1 ? [1e3, "ms"] : [1, "s"];
    pen.fillStyle = colorOf("--soft");
    for (const at of niceTicks(first - this.origin, longest, Math.max(3, this.width / 110))) {
      const x = this.left + ((at + this.origin - first) / (last - first)) * (this.width - this.left);
      const text = `${Number((at * factor).toPrecision(8)).toLocaleString("en-US", { maximumFractionDigits: 6 })} ${name}`;
      const wide = pen.measureText(text).width;
      pen.fillRect(x, height - AXIS, 1, 4);
      pen.fillText(text, Math.min(Math.max(this.left, x - wide / 2), this.width - wide), height - AXIS / 2 + 3);
    }
  }

  hover(x, y) {
    const time = this.timeAt(x) * MICRO;
    const lane = this.tops.findLastIndex((top) => top <= y);
    const { worker, kind, at, length } = this.spans;
    let found = -1;
    for (let i = 0; i < at.length; i++) if (worker[i] === lane && at[i] <= time && time <= at[i] + length[i]) found = i;
    if (found < 0) return this.tip.hide();
    const what = this.texts[found] || this.kinds[kind[found]].name;
    this.tip.show(`${this.nameOf(lane)}: ${what} ${duration(length[found] / MICRO)}, from ${duration(at[found] / MICRO - this.origin)}`, x, this.tops[lane + 1] ?? y);
  }

  zoom(range) {
    this.range = range;
    this.draw();
    this.refine?.(range);
  }

  press(event) {
    const [first, last] = this.shown();
    const wide = last - first;
    const changes = {
      ArrowLeft: [first - wide / 4, last - wide / 4], ArrowRight: [first + wide / 4, last + wide / 4],
      "+": [first + wide / 4, last - wide / 4], "-": [first - wide / 2, last + wide / 2], 0: null, Escape: null,
    };
    if (!(event.key in changes)) return;
    event.preventDefault();
    this.zoom(changes[event.key]);
  }
}
