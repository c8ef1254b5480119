import { BarsPanel } from "./bars.js";
import { CurvesPanel } from "./curves.js";
import { LanesPanel } from "./lanes.js";
import { MemoryPanel } from "./memory.js";
import { mountPlots } from "./plots.js";
import { QualityPanel } from "./quality.js";

// Puts the plots of a page into the places that its template keeps for them.

export function mountPanels(data, { live = false, refineCurves = null, refineLanes = null } = {}) {
  const place = (name) => document.querySelector(`[data-panel="${name}"]`);
  const common = { kinds: data.kinds, clock: data.clock, live };
  const panels = { curves: null, bars: null, lanes: [] };
  if (place("curves")) {
    panels.curves = new CurvesPanel(place("curves"), { ...common, refine: refineCurves });
    panels.curves.set(data.figures);
  }
  if (place("bars")) {
    panels.bars = new BarsPanel(place("bars"), common);
    panels.bars.set(data.bars);
  }
  if (place("memory")) {
    panels.memory = new MemoryPanel(place("memory"));
    panels.memory.set(data.figures.find((one) => String(one.id) === place("memory").dataset.run));
  }
  if (place("quality")) {
    panels.quality = new QualityPanel(place("quality"));
    panels.quality.set(data.quality);
  }
  mountPlots(data.plots, common);
  document.querySelectorAll('[data-panel="lanes"]').forEach((root) => {
    const figure = data.figures.find((one) => String(one.id) === root.dataset.run);
    if (!figure?.lanes) return;
    const panel = new LanesPanel(root, { ...common, refine: refineLanes });
    panel.set(figure.lanes);
    panels.lanes.push(panel);
  });
  panels.setPlots = (plots) => mountPlots(plots, common);
  return panels;
}
