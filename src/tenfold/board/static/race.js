import { setUpPage } from "./theme.js";
import { mountPanels } from "./panels.js";
import { ask, hideToken, setParts } from "./live.js";

// The page of a race: it grows while contestants run, and a slider moves the predicted speedup.

const POLL_MS = 500;

hideToken();
setUpPage();
const panels = mountPanels(JSON.parse(document.getElementById("figures").textContent));
const workers = document.getElementById("workers");
const link = document.getElementById("link");
const sign = document.getElementById("live");

async function update() {
  try {
    const { parts, plots, over } = await ask("/data/race");
    setParts(parts);
    panels.setPlots(plots);
    sign.textContent = over ? "" : "live";
    sign.className = "on";
    if (!over) return void setTimeout(update, POLL_MS);
    workers.disabled = link.disabled = false; // a prediction takes cores from contestants
    predict();
  } catch {
    sign.textContent = "the server does not answer";
    sign.className = "off";
    setTimeout(update, 4 * POLL_MS);
  }
}

// One request at a time: while one is under way, only the last position of the slider waits.
let busy = false;
let again = false;
async function predict() {
  const count = Number(workers.value) + 1;
  document.getElementById("workers-now").textContent = count;
  if (busy) return void (again = true);
  busy = true;
  try {
    const { plots, text } = await ask(`/data/race/scaling?workers=${count}&link=${link.value}`);
    document.getElementById("scaling-text").textContent = text;
    panels.setPlots(plots);
  } catch (error) {
    document.getElementById("scaling-text").textContent = error.message;
  }
  busy = false;
  if (again) {
    again = false;
    predict();
  }
}

workers.addEventListener("input", predict);
link.addEventListener("change", predict);
update();
