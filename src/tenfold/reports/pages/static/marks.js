import { drawing } from "./dom.js";

// Markers, deviations and bands on the canvas of a chart, and markers for its legend.

const RADIUS = 4.2;
const RING = 8;
const CAP = 3;
const SHAPES = {
  o: "M1 0A1 1 0 1 1 -1 0A1 1 0 1 1 1 0Z",
  s: "M-.9 -.9H.9V.9H-.9Z",
  "^": "M0 -1.1L1.1 .9H-1.1Z",
  v: "M0 1.1L1.1 -.9H-1.1Z",
  D: "M0 -1.25L1.25 0L0 1.25L-1.25 0Z",
  P: "M-.4 -1.1H.4V-.4H1.1V.4H.4V1.1H-.4V.4H-1.1V-.4H-.4Z",
  X: "M-1.05 -.65L-.65 -1.05L0 -.4L.65 -1.05L1.05 -.65L.4 0L1.05 .65L.65 1.05L0 .4L-.65 1.05L-1.05 .65L-.4 0Z",
  F: "M-.7 1.5V-1.4L1.1 -.75L-.7 -.1",
  p: "M0 -1.15L1.1 -.35L.68 .95H-.68L-1.1 -.35Z",
};
const HALVES = { left: "M-2 -2H0V2H-2Z", bottom: "M-2 0H2V2H-2Z" };

export const FLAG = "F"; // has a key of its own, as it is predicted though others that are hollow may not be drawn

export function markerSymbol(marker, fill, color = "") {
  const ink = color || "currentColor";
  const half = HALVES[fill] ? [drawing("path", { d: { left: "M0 -1A1 1 0 0 0 0 1Z", bottom: "M-1 0A1 1 0 0 0 1 0Z" }[fill], fill: ink })] : [];
  return drawing("svg", { viewBox: "-1.6 -1.6 3.2 3.2", class: "marker", "aria-hidden": "true" },
    drawing("path", { d: SHAPES[marker] || SHAPES.o, fill: fill === "full" ? ink : "none", stroke: ink, "stroke-width": 0.35 }), half);
}

// The markers of a line as the content of an SVG; half filled ones are pale there.
export function pointsAsSvg(line, points, color, page, height) {
  return points.map(([x, y], at) => {
    const bar = line.low?.length && line.high[at] > line.low[at] ? `<path d="M${x} ${height(line.low[at])}V${height(line.high[at])}" stroke="${color}"/>` : "";
    const ringed = line.rings?.includes(at) ? `<circle cx="${x}" cy="${y}" r="${RING}" fill="none" stroke="${color}" stroke-width="1.4"/>` : "";
    const filled = line.fill === "none" ? page : color;
    const pale = HALVES[line.fill] ? ' fill-opacity="0.4"' : "";
    return `${bar}<path d="${SHAPES[line.markers?.[at]] || SHAPES.o}" transform="translate(${x} ${y}) scale(${line.notes ? RADIUS : 3})" fill="${filled}"${pale} stroke="${color}" stroke-width="0.35"/>${ringed}`;
  }).join("");
}

export function drawBand(plot, line, color, alpha) {
  const pen = clipped(plot);
  pen.globalAlpha = alpha;
  pen.fillStyle = color;
  pen.beginPath();
  line.x.forEach((x, at) => pen.lineTo(plot.valToPos(x, "x", true), plot.valToPos(line.high[at], "y", true)));
  for (let at = line.x.length - 1; at >= 0; at--) pen.lineTo(plot.valToPos(line.x[at], "x", true), plot.valToPos(line.low[at], "y", true));
  pen.fill();
  pen.restore();
}

export function drawPoints(plot, line, color, page, ink) {
  const { left, top, width, height } = plot.bbox;
  const scale = devicePixelRatio || 1;
  const pen = plot.ctx;
  pen.save();
  pen.setLineDash([]);
  pen.strokeStyle = color;
  line.x.forEach((value, at) => {
    const x = plot.valToPos(value, "x", true);
    const y = plot.valToPos(line.y[at], "y", true);
    if (x < left - 1 || x > left + width + 1 || y < top - 1 || y > top + height + 1) return;
    if (line.low?.length && line.spread !== "band" && line.high[at] > line.low[at]) deviation(plot, line, at, x, scale);
    marker(pen, line.markers?.[at] || "o", line.fill, x, y, RADIUS * scale, color, page);
    if (line.rings?.includes(at)) ring(pen, x, y, scale);
    if (line.numbers?.[at]) number(pen, line.numbers[at], x, y, scale, ink);
  });
  pen.restore();
}

function marker(pen, shape, fill, x, y, size, color, page) {
  const path = new Path2D(SHAPES[shape] || SHAPES.o);
  pen.save();
  pen.translate(x, y);
  pen.scale(size, size);
  pen.lineWidth = 0.35;
  pen.fillStyle = fill === "full" ? color : page;
  pen.fill(path);
  if (HALVES[fill]) {
    pen.save();
    pen.clip(new Path2D(HALVES[fill]));
    pen.fillStyle = color;
    pen.fill(path);
    pen.restore();
  }
  pen.stroke(path);
  pen.restore();
}

function deviation(plot, line, at, x, scale) {
  const pen = plot.ctx;
  const [low, high] = [line.low[at], line.high[at]].map((value) => plot.valToPos(value, "y", true));
  pen.lineWidth = scale;
  pen.beginPath();
  pen.moveTo(x, low);
  pen.lineTo(x, high);
  for (const end of [low, high]) {
    pen.moveTo(x - CAP * scale, end);
    pen.lineTo(x + CAP * scale, end);
  }
  pen.stroke();
}

function ring(pen, x, y, scale) {
  pen.lineWidth = 1.4 * scale;
  pen.beginPath();
  pen.arc(x, y, RING * scale, 0, 2 * Math.PI);
  pen.stroke();
}

function number(pen, text, x, y, scale, ink) {
  pen.font = `${12 * scale}px system-ui, sans-serif`;
  pen.textAlign = "center";
  pen.textBaseline = "alphabetic";
  pen.fillStyle = ink;
  pen.fillText(text, x - 9 * scale, y - 7 * scale);
}

function clipped(plot) {
  const { left, top, width, height } = plot.bbox;
  const pen = plot.ctx;
  pen.save();
  pen.beginPath();
  pen.rect(left, top, width, height);
  pen.clip();
  return pen;
}
