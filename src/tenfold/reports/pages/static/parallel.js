import { drawing, element, Tip } from "./dom.js";

// Parallel coordinates: an axis for each field, a line across all of them for each trial; the best are drawn last and darkest.

export function parallelPlot(place, { title, axes, lines }) {
  const [height, head, foot, side] = [300, 26, 14, 64];
  const home = element("div", { class: "frame" });
  const tip = new Tip();
  place.replaceChildren(element("figure", { class: "interactive" }, element("h3", {}, title), home));

  function draw() {
    const width = home.clientWidth;
    if (!width) return;
    const x = (at) => side + (axes.length > 1 ? (at / (axes.length - 1)) * (width - 2 * side) : 0);
    const y = (share) => height - foot - share * (height - head - foot);
    const rails = axes.map(({ name, ticks }, at) => drawing("g", {},
      drawing("line", { x1: x(at), x2: x(at), y1: y(0), y2: y(1), class: "interval-line" }),
      drawing("text", { x: x(at), y: 12, "text-anchor": "middle", class: "axis-name" }, name),
      ticks.map(([share, text]) => drawing("text", { x: x(at) + 5, y: y(share) + 4, class: "axis-tick" }, text))));
    const drawn = lines.map((line) => {
      const path = drawing("polyline", {
        points: line.places.map((share, at) => `${x(at)},${y(share)}`).join(" "), class: `trial${line.faint ? " faint" : ""}`,
        style: `stroke: color-mix(in srgb, #2d69d2 ${Math.round(15 + 85 * line.rank ** 2)}%, var(--line))`,
      });
      path.addEventListener("pointerenter", ({ clientX, clientY }) => {
        const { left, top } = home.getBoundingClientRect();
        tip.show(line.note, clientX - left, clientY - top);
      });
      path.addEventListener("pointerleave", () => tip.hide());
      return path;
    });
    const about = `${title}: ${lines.length} trials over ${axes.map(({ name }) => name).join(", ")}`;
    home.replaceChildren(drawing("svg", { class: "strip parallel", role: "img", "aria-label": about, width, height, viewBox: `0 0 ${width} ${height}` }, drawn, rails), tip.root);
  }

  new ResizeObserver(draw).observe(home);
}
