import { setUpCopying, setUpDownloads, setUpTheme } from "./theme.js";
import { mountPanels } from "./panels.js";

// A report: everything it draws is inside.

setUpTheme();
setUpDownloads();
setUpCopying();
const held = document.getElementById("figures");
if (held) mountPanels(JSON.parse(held.textContent));
