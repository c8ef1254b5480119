// Elements without templates: text is always set as text, so that nothing a run is called can become markup.

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(made.style, value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

// The same for drawings.
export function drawing(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children.flat());
  return made;
}

// A text beside a place of the frame that it is in, as far as that has room.
export class Tip {
  constructor() {
    this.root = element("div", { class: "tip", hidden: true });
  }

  hide() {
    this.root.hidden = true;
  }

  show(text, x, y, { above = false } = {}) {
    this.root.textContent = text;
    this.root.hidden = false;
    const room = this.root.parentElement.clientWidth - this.root.offsetWidth;
    const height = this.root.offsetHeight + 10;
    this.root.style.left = `${Math.max(0, Math.min(x + 12, room))}px`;
    this.root.style.top = `${above && y > height ? y - height : y + 14}px`;
  }
}

export function colorOf(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Calls back when the page turns light or dark.
export function whenThemeChanges(redraw) {
  new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

// A group of buttons of which exactly one is chosen; arrow keys move the choice.
export function choice(name, options, chosen, changed) {
  const group = element("div", { class: "choice", role: "radiogroup", "aria-label": name });
  const buttons = options.map(([value, text]) =>
    element("button", {
      type: "button", role: "radio", "aria-checked": String(value === chosen), tabindex: value === chosen ? 0 : -1,
      onclick: () => pick(value),
      onkeydown: (event) => {
        const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        if (!move) return;
        event.preventDefault();
        const at = options.findIndex(([one]) => one === value);
        const next = (at + move + options.length) % options.length;
        pick(options[next][0]);
        buttons[next].focus();
      },
    }, text));
  function pick(value) {
    buttons.forEach((button, at) => {
      button.setAttribute("aria-checked", String(options[at][0] === value));
      button.tabIndex = options[at][0] === value ? 0 : -1;
    });
    changed(value);
  }
  group.append(...buttons);
  return group;
}

export function toggle(text, on, changed) {
  const button = element("button", { type: "button", class: "toggle", "aria-pressed": String(on) }, text);
  button.addEventListener("click", () => {
    const now = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(now));
    changed(now);
  });
  return button;
}
