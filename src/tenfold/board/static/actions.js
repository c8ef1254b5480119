import { element } from "./dom.js";
import { act } from "./live.js";

// The buttons of a run: stop, resume, rename, tag, note, delete.

// What was done, in one place of the page; the next page says it where an action leads to another.
const KEPT = "tenfold-said";

export function say(text, failed = false) {
  const said = document.getElementById("said");
  said.textContent = text;
  said.classList.toggle("failed", failed);
}

export function sayOnNextPage(text) {
  try { sessionStorage.setItem(KEPT, text); } catch { /* a browser that keeps nothing */ }
}

export function sayWhatWasDone() {
  try {
    const text = sessionStorage.getItem(KEPT);
    sessionStorage.removeItem(KEPT);
    if (text) setTimeout(() => say(text), 100); // a text that a region has from the start is not read out
  } catch { /* a browser that keeps nothing */ }
}

export function showActions(place, run, changed) {
  async function go(what, given) {
    say("…");
    try {
      const done = `Run ${run.id}: ${await act(run.id, what, given)}`;
      say(done);
      changed?.(what, done);
    } catch (error) {
      say(error.message, true);
    }
  }
  const button = (text, onclick, more = {}) => element("button", { type: "button", class: "toggle", onclick, ...more }, text);
  const buttons = [
    run.status === "running" ? button("Stop", () => go("stop"), { title: "As Ctrl-C: it can be resumed" }) : null,
    run.status === "interrupted" || (run.status === "failed" && !run.diverged) ? button("Resume", () => go("resume")) : null,
    run.status === "running" ? null : button("Rename", async () => {
      const title = await askText("Rename run", "Title", run.title);
      if (title !== null) go("rename", { title });
    }),
    button("Tags", async () => {
      const tags = await askText("Tags", "Separated by spaces", (run.tags || []).join(" "));
      if (tags !== null) go("tag", { tags });
    }),
    button("Note", async () => {
      const note = await askText("Note", "What should be remembered of this run", run.note || "", true);
      if (note !== null) go("note", { note });
    }),
    run.status === "running" ? null : button("Delete", async () => {
      if (await confirmDialog(`Delete run ${run.id}?`, "Its folder goes to the trash folder beside the others.")) go("remove", { confirmed: true });
    }),
  ];
  const focused = document.activeElement?.parentElement === place ? document.activeElement.textContent : null;
  place.replaceChildren(...buttons.filter(Boolean));
  if (focused) ([...place.children].find((one) => one.textContent === focused) || place.firstChild).focus();
}

export function askText(title, label, value, long = false) {
  const field = long ? element("textarea", { rows: 5 }) : element("input", { type: "text" });
  field.value = value;
  return openDialog(title, element("label", {}, label, field), [["Save", () => field.value], ["Cancel", () => null]], field);
}

export function confirmDialog(title, text) {
  return openDialog(title, element("p", {}, text), [["Delete", () => true], ["Cancel", () => false]]);
}

function openDialog(title, content, answers, focused = null) {
  return new Promise((resolve) => {
    const dialog = element("dialog", { "aria-label": title });
    let result = answers[answers.length - 1][1]();
    const form = element("form", { method: "dialog", onsubmit: () => { result = answers[0][1](); } },
      element("h2", {}, title), content,
      element("div", { class: "controls" }, answers.map(([text, answer], at) =>
        element("button", { type: at ? "button" : "submit", class: at ? "toggle" : "toggle main", onclick: at ? () => { result = answer(); dialog.close(); } : null }, text))));
    dialog.append(form);
    dialog.addEventListener("close", () => { dialog.remove(); resolve(result); });
    document.body.append(dialog);
    dialog.showModal();
    focused?.focus();
  });
}
