import { setUpSaving } from "./saving.js";

// What every page does: the button that switches between light and dark, downloads that browsers accept, buttons that copy.

export function setUpPage() {
  setUpTheme();
  setUpDownloads();
  setUpCopying();
  setUpSaving();
}

function setUpTheme() {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const stored = storage("tenfold-theme");
  if (stored && location.protocol.startsWith("http")) root.dataset.theme = stored;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const nameButton = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    storage("tenfold-theme", root.dataset.theme);
    nameButton();
  });
  prefersDark.addEventListener("change", nameButton);
  nameButton();
}

// Browsers refuse to save long data addresses, but not blobs.
function setUpDownloads() {
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[download]");
    if (!link || !link.href.startsWith("data:")) return;
    const bytes = Uint8Array.from(atob(link.href.split(",")[1]), (letter) => letter.charCodeAt(0));
    link.href = URL.createObjectURL(new Blob([bytes], { type: link.href.slice(5).split(";")[0] }));
  });
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
}

function setUpCopying() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("button[data-copy]");
    if (!button) return;
    await navigator.clipboard?.writeText(button.dataset.copy).catch(() => null);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

function storage(key, value) {
  try {
    if (value !== undefined) localStorage.setItem(key, value);
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}
