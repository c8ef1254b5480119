import { setUpPage } from "./theme.js";

// A page without interactive plots.

setUpPage();
