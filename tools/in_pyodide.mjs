// Runs a Python program inside Pyodide under Node, with this folder as its own: what must be compiled, checked or
// measured in the page's Python. usage: node tools/in_pyodide.mjs PROGRAM.py [ARGUMENT...]
import { loadPyodide } from "pyodide";

// Without this Node shows the whole line of the library that failed, a megabyte of it.
process.on("uncaughtException", ({ message }) => {
  console.error(message);
  process.exit(1);
});

const [program, ...rest] = process.argv.slice(2);
const pyodide = await loadPyodide();
pyodide.FS.mkdirTree("/project");
pyodide.FS.mount(pyodide.FS.filesystems.NODEFS, { root: process.cwd() }, "/project");
pyodide.globals.set("argv", pyodide.toPy([program, ...rest]));
const code = await pyodide.runPythonAsync(`
import os, runpy, sys
os.chdir("/project")
sys.path.insert(0, "/project")
sys.argv = argv
try:
    runpy.run_path(argv[0], run_name="__main__")
    code = 0
except SystemExit as end:
    code = end.code or 0
code
`);
process.exit(typeof code === "number" ? code : 1);
