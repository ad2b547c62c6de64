// Runs a program in the MicroPython that the page ships, with the page's modules beside it; prints what it prints.
// usage: node in_micropython.mjs PROJECT PROGRAM DATA
import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [project, program, data] = process.argv.slice(2);
const folder = path.join(project, "node_modules/@micropython/micropython-webassembly-pyscript");
const { loadMicroPython } = await import(pathToFileURL(path.join(folder, "micropython.mjs")));
const python = await loadMicroPython({
  url: path.join(folder, "micropython.wasm"),
  heapsize: 64 << 20,
  stdout: (line) => console.log(line),
});
python.FS.mkdir("/page");
for (const name of fs.readdirSync(path.join(project, "page")).filter((name) => name.endsWith(".py"))) {
  const source = fs.readFileSync(path.join(project, "page", name));
  python.FS.writeFile(`/page/${name}`, source);
  if (name === "typing.py") python.FS.writeFile("/typing.py", source);
}
python.FS.writeFile("/main.py", fs.readFileSync(path.join(project, "main.py")));
python.FS.writeFile("/data.json", fs.readFileSync(data));
python.runPython("import sys; sys.path.insert(0, '/')");
python.runPython(fs.readFileSync(program, "utf8"));
