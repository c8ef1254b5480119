import { colorOf, element } from "./dom.js";

// Every plot can be saved: its numbers as CSV, and what it shows as SVG and PNG. A plot that knows its numbers has
// `rows()` on its root, and one that is drawn on a canvas may have `vector()`; the rest is read from the page.

const SAVED_PLOTS = 'figure.interactive, [data-panel="bars"], [data-panel="lanes"]';
const PNG_SCALE = 2;
const SVG_MARGIN = 12;

export function setUpSaving() {
  for (const event of ["pointerover", "focusin"])
    document.addEventListener(event, ({ target }) => {
      const plot = target.closest?.(SAVED_PLOTS);
      if (plot && !plot.querySelector(":scope > .save")) plot.append(saveButtons(plot));
    });
}

function saveButtons(plot) {
  const button = (kind, make) => element("button", { type: "button", title: `Save this plot as ${kind}`, onclick: async () => saveFile(`${fileName(plot)}.${kind.toLowerCase()}`, await make(plot)) }, kind);
  return element("div", { class: "save", "aria-label": "Save this plot" }, button("PNG", pngOf), button("SVG", (one) => new Blob([svgOf(one)], { type: "image/svg+xml" })), button("CSV", (one) => new Blob([csvOf(one)], { type: "text/csv" })));
}

function fileName(plot) {
  const title = plot.querySelector("h3")?.textContent || plot.dataset.panel || "plot";
  return `tenfold-${title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60)}`;
}

function saveFile(name, blob) {
  const link = element("a", { download: name, href: URL.createObjectURL(blob) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// Text that a spreadsheet would take for a formula is marked as text.
function csvOf(plot) {
  const rows = plot.rows?.() || [...plot.querySelectorAll("tr")].map((row) => [...row.children].map((cell) => cell.textContent));
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return `${rows.map((row) => row.map(cell).join(",")).join("\n")}\n`;
}

async function pngOf(plot) {
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgOf(plot))}`;
  await picture.decode();
  const canvas = element("canvas", { width: picture.width * PNG_SCALE, height: picture.height * PNG_SCALE });
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

export function svgOf(plot) {
  const box = plot.getBoundingClientRect();
  const [width, height] = [Math.ceil(box.width) + 2 * SVG_MARGIN, Math.ceil(box.height) + 2 * SVG_MARGIN];
  const origin = { x: box.left - SVG_MARGIN, y: box.top - SVG_MARGIN };
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="system-ui, sans-serif">`
    + `<rect width="100%" height="100%" fill="${colorOf("--page")}"/>${nodeAsSvg(plot, origin, plot)}</svg>`;
}

// What an element shows: its background, its text, and what is in it.
function nodeAsSvg(node, origin, plot) {
  if (node.nodeType === Node.TEXT_NODE) return textAsSvg(node, origin);
  if (node.nodeType !== Node.ELEMENT_NODE || node.matches(".save, .tip, select, input, button.toggle, .choice, .u-over, .u-under, .measure:empty")) return "";
  const style = getComputedStyle(node);
  const box = node.getBoundingClientRect();
  if (style.display === "none" || style.visibility === "hidden" || !box.width) return "";
  const [x, y] = [box.left - origin.x, box.top - origin.y];
  if (node.tagName === "CANVAS") {
    if (plot.vector) return `<g transform="translate(${x} ${y})">${plot.vector()}</g>`;
    return `<image x="${x}" y="${y}" width="${box.width}" height="${box.height}" href="${node.toDataURL()}"/>`;
  }
  if (node.tagName.toLowerCase() === "svg") return svgInside(node, x, y, box);
  const filled = /^rgba\(.*, 0\)$|transparent/.test(style.backgroundColor) ? "" : `<rect x="${x}" y="${y}" width="${box.width}" height="${box.height}" rx="${parseFloat(style.borderTopLeftRadius) || 0}" fill="${style.backgroundColor}"/>`;
  const line = node.matches(".line") ? `<line x1="${x}" x2="${x + box.width}" y1="${y + 1}" y2="${y + 1}" stroke="${style.borderTopColor}" stroke-width="${parseFloat(style.borderTopWidth)}"${style.borderTopStyle === "dashed" ? ' stroke-dasharray="4 3"' : ""}/>` : "";
  return filled + line + [...node.childNodes].map((child) => nodeAsSvg(child, origin, plot)).join("");
}

function svgInside(node, x, y, box) {
  const copy = node.cloneNode(true);
  const [before, after] = [node, copy].map((one) => [one, ...one.querySelectorAll("*")]);
  before.forEach((one, at) => {
    const style = getComputedStyle(one);
    for (const name of ["fill", "stroke", "stroke-width", "font-size", "color"]) after[at].style.setProperty(name, style.getPropertyValue(name));
  });
  for (const [name, value] of Object.entries({ x, y, width: box.width, height: box.height })) copy.setAttribute(name, value);
  return new XMLSerializer().serializeToString(copy);
}

// Text, line by line as the page breaks it.
function textAsSvg(node, origin) {
  if (!node.data.trim()) return "";
  const style = getComputedStyle(node.parentElement);
  const range = document.createRange();
  const lines = [];
  for (const { index, 0: word } of node.data.matchAll(/\S+\s*/g)) {
    range.setStart(node, index);
    range.setEnd(node, index + word.length);
    const box = range.getBoundingClientRect();
    if (lines.length && Math.abs(lines.at(-1).box.top - box.top) < 3) lines.at(-1).text += word;
    else lines.push({ box, text: word });
  }
  const size = parseFloat(style.fontSize);
  return lines.map(({ box, text }) => `<text x="${box.left - origin.x}" y="${box.top - origin.y + box.height / 2 + size * 0.35}" font-size="${size}" font-weight="${style.fontWeight}" fill="${style.color}">${escaped(text.trimEnd())}</text>`).join("");
}

export function escaped(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
}
