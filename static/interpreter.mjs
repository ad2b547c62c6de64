// The module that PyScript's `interpreter` key names: Pyodide, found where this site keeps it.
// PyScript takes the folder of this module for Pyodide's own, so the right one is named here.
import * as pyodide from "../vendor/pyodide/pyodide.mjs";

export const version = pyodide.version;

const indexURL = new URL("../vendor/pyodide/", import.meta.url).href;

export const loadPyodide = (options) => pyodide.loadPyodide({ ...options, indexURL });
