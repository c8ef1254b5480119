import { element } from "./dom.js";
import { act, ask } from "./live.js";

// The buttons of a run: stop, resume, rename, tag, note, delete, and what differs from another run.

export function showActions(place, run, changed) {
  const said = element("span", { role: "status", class: "said" });
  async function go(what, given) {
    said.textContent = "…";
    try {
      said.textContent = await act(run.id, what, given);
      changed?.(what);
    } catch (error) {
      said.textContent = error.message;
      said.classList.add("failed");
    }
  }
  const button = (text, onclick, more = {}) => element("button", { type: "button", class: "toggle", onclick, ...more }, text);
  const buttons = [
    run.status === "running" ? button("Stop", () => go("stop"), { title: "As Ctrl-C: it can be resumed" }) : null,
    run.status === "interrupted" || run.status === "failed" ? button("Resume", () => go("resume")) : null,
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
    button("Compare with", async () => {
      const other = await askText("What differs from another run", "Number of the other run", "");
      if (other) showDifferences(run.id, Number(other), said);
    }),
    run.status === "running" ? null : button("Delete", async () => {
      if (await confirmDialog(`Delete run ${run.id}?`, "Its folder goes to the folder trash beside the others.")) go("remove", { confirmed: true });
    }),
  ];
  place.replaceChildren(...buttons.filter(Boolean), said);
  return { say: (text) => { said.textContent = text; } };
}

async function showDifferences(run, other, said) {
  try {
    const { differences } = await ask(`/data/run/${run}/differences/${other}`);
    const rows = differences.map(([name, ...values]) => element("tr", {}, element("th", { class: "words", scope: "row" }, name), values.map((value) => element("td", {}, value))));
    const table = element("table", {},
      element("thead", {}, element("tr", {}, ["field", `run ${run}`, `run ${other}`].map((name, at) => element("th", { class: at ? "" : "words", scope: "col" }, name)))),
      element("tbody", {}, rows));
    await openDialog(`Run ${run} and run ${other}`, rows.length ? table : element("p", {}, "Both have the same experiment."), [
      ["Compare side by side", () => { location.href = `/compare?runs=${run},${other}`; }], ["Close", () => null]]);
  } catch (error) {
    said.textContent = error.message;
  }
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
