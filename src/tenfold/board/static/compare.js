import { setUpPage } from "./theme.js";
import { mountPanels } from "./panels.js";
import { ask, extend, follow, hideToken, setParts } from "./live.js";

// The page of several runs; those that are running grow.

hideToken();
setUpPage();
const data = JSON.parse(document.getElementById("figures").textContent);
let zoomed = false;
const panels = mountPanels(data, { refineCurves: refine });

async function refine(first, last) {
  zoomed = first !== null;
  if (!zoomed) return panels.curves.set(data.figures);
  const finer = await Promise.all(data.figures.map(async (figure) => ({
    ...figure, ...(await ask(`/data/run/${figure.id}/curves?from=${first}&to=${last}&columns=400`)),
  })));
  if (zoomed) panels.curves.set(finer);
}

// The plots of those that have ended: scaling, speed and quality, where the time goes.
async function readCharts() {
  const found = await ask(`/data/compare?runs=${data.figures.map((one) => one.id).join(",")}`).catch(() => null);
  if (!found) return; // all but one have been removed
  const { parts, plots, bars } = found;
  setParts(parts);
  panels.setPlots(plots);
  if (bars.length) panels.bars?.set(bars);
}

follow(() => ({ runs: data.figures.map((one) => `${one.id}@${one.position}`).join(","), parts: 1, running: data.figures.filter((one) => one.status === "running").map((one) => one.id).join(",") }), async (news) => {
  let ended = false;
  for (const [id, own] of Object.entries(news.runs || {})) {
    const figure = data.figures.find((one) => one.id === Number(id));
    if (own.gone) continue;
    if (own.parts) setParts(own.parts);
    if (own.status && own.status !== figure.status) {
      figure.status = own.status;
      ended = true;
    }
    if (own.position) figure.position = own.position;
    // The length of an epoch is not known before the run has started.
    if (own.again || (own.curves && !figure.epochLength)) Object.assign(figure, await ask(`/data/run/${id}`), { label: figure.label, color: figure.color, lanes: null });
    else if (own.curves) extend(figure, own.curves);
  }
  if (!zoomed) panels.curves?.set(data.figures);
  if (ended) await readCharts();
});
