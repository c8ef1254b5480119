import { setUpDownloads, setUpTheme } from "./theme.js";

// A page without interactive plots.

setUpTheme();
setUpDownloads();
