import { setUpCopying, setUpDownloads, setUpTheme } from "./theme.js";
import { mountPanels } from "./panels.js";
import { ask, extend, follow, hideToken, setParts } from "./live.js";

// The page of several runs; those that are running grow.

hideToken();
setUpTheme();
setUpDownloads();
setUpCopying();
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

follow(() => ({ runs: data.figures.map((one) => `${one.id}@${one.position}`).join(","), parts: 1 }), async (news) => {
  for (const [id, own] of Object.entries(news.runs || {})) {
    const figure = data.figures.find((one) => one.id === Number(id));
    if (own.parts) setParts(own.parts);
    if (own.position) figure.position = own.position;
    if (own.again) Object.assign(figure, await ask(`/data/run/${id}`), { label: figure.label, colour: figure.colour, lanes: null });
    else if (own.curves) extend(figure, own.curves);
  }
  if (!zoomed) panels.curves?.set(data.figures);
});
