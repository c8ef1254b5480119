import { setUpPage } from "./theme.js";
import { mountPanels } from "./panels.js";

// A report: everything it draws is inside.

setUpPage();
const held = document.getElementById("figures");
if (held) mountPanels(JSON.parse(held.textContent));
