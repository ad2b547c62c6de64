// Cuts from Pyodide's WebAssembly the exports that nothing here asks for, and from its loader the lines that name them:
// most of 8,500, for libraries that the page does not ship. Each costs every start an object, a place in the table of
// functions and several entries of the dynamic linker; the loader's lines are a third of it.
// usage: node tools/exports.mjs REPACKED OUT
//   REPACKED  the runtime as tools/repack.py made it: its libraries say what they import
//   OUT       gets the npm package `pyodide` with fewer exports
import fs from "node:fs";
import path from "node:path";
import { Reader } from "./webassembly.mjs";

const [repacked, out] = process.argv.slice(2);
const PACKAGE = "node_modules/pyodide";
const FILES = ["package.json", "pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "pyodide-lock.json"];
// Those of ours that call Python's functions by their names.
const CALLERS = ["static/snapshot.mjs", "tools/snapshot.mjs", "tools/many_kinds.py"];
const EXPORTS = 7;
const KINDS = ["function", "table", "memory", "global", "tag"];

// As `Reader` reads a number.
function encoded(value) {
  const bytes = [];
  do {
    const low = value & 0x7f;
    value >>>= 7;
    bytes.push(value ? low | 0x80 : low);
  } while (value);
  return Buffer.from(bytes);
}

function withExports(wasm, isKept) {
  const reader = new Reader(wasm);
  const sections = [wasm.subarray(0, reader.at)];
  while (reader.at < wasm.length) {
    const begin = reader.at;
    const id = reader.byte();
    const size = reader.number();
    const end = reader.at + size;
    if (id !== EXPORTS) {
      sections.push(wasm.subarray(begin, end));
    } else {
      const kept = [];
      for (let left = reader.number(); left; left--) {
        const entry = reader.at;
        const length = reader.number();
        const name = wasm.toString("utf8", reader.at, reader.at + length);
        reader.at += length;
        const kind = KINDS[reader.byte()];
        reader.number();
        if (isKept({ name, kind })) kept.push(wasm.subarray(entry, reader.at));
      }
      const content = Buffer.concat([encoded(kept.length), ...kept]);
      sections.push(Buffer.of(EXPORTS), encoded(content.length), content);
    }
    reader.at = end;
  }
  return Buffer.concat(sections);
}

// The loader has one function with a line for each export, and one declaration of all their variables.
const ASSIGNING = /function assignWasmExports\(wasmExports\)\{([^}]*)\}/;
const ASSIGNMENT = /^(\w+)=[^;]*\bwasmExports\["([^"]+)"\](?:\.value>>>0)?$/;

function parts(loader) {
  const [whole, lines] = loader.match(ASSIGNING);
  const assignments = lines.split(";").map((line) => {
    const found = line.match(ASSIGNMENT);
    if (!found) throw new Error(`the loader has another kind of line: ${line.slice(0, 200)}`);
    return { line, variable: found[1], name: found[2] };
  });
  const [declaration, variables] = loader.match(new RegExp(`var (${assignments[0].variable}(?:,\\w+)*);`));
  return { whole, assignments, declaration, variables: variables.split(",") };
}

function withAssignments(loader, { whole, assignments, declaration, variables }, isKept) {
  const removed = new Set(assignments.filter(({ name }) => !isKept(name)).map(({ variable }) => variable));
  const lines = assignments.filter(({ name }) => isKept(name)).map(({ line }) => line);
  return loader
    .replace(whole, () => `function assignWasmExports(wasmExports){${lines.join(";")}}`)
    .replace(declaration, () => `var ${variables.filter((variable) => !removed.has(variable)).join(",")};`);
}

function* libraries(folder) {
  for (const entry of fs.readdirSync(folder, { withFileTypes: true, recursive: true })) {
    if (entry.name.endsWith(".so")) yield fs.readFileSync(path.join(entry.parentPath, entry.name));
  }
}

const read = (name) => fs.readFileSync(path.join(PACKAGE, name));
const [wasm, loader] = [read("pyodide.asm.wasm"), read("pyodide.asm.mjs").toString()];
const main = new WebAssembly.Module(wasm);
const found = parts(loader);
const code = [
  loader.replace(found.whole, "").replace(found.declaration, ""),
  read("pyodide.mjs").toString(),
  ...CALLERS.map((name) => fs.readFileSync(name, "utf8")),
];
const words = new Set(code.flatMap((text) => text.match(/[A-Za-z_$][\w$]*/g)));
const imported = [main, ...[...libraries(repacked)].map((library) => new WebAssembly.Module(library))];
const names = new Set(imported.flatMap((module) => WebAssembly.Module.imports(module)).map(({ name }) => name));
const assigned = new Map(found.assignments.map(({ name, variable }) => [name, variable]));
// JavaScript has them under their own name or with an underscore before it.
const isKept = (name) => names.has(name) || words.has(name) || words.has(`_${name}`) || words.has(assigned.get(name));

fs.mkdirSync(out, { recursive: true });
for (const name of FILES) fs.copyFileSync(path.join(PACKAGE, name), path.join(out, name));
const lean = withExports(wasm, ({ name, kind }) => !["function", "global"].includes(kind) || isKept(name));
fs.writeFileSync(path.join(out, "pyodide.asm.wasm"), lean);
fs.writeFileSync(path.join(out, "pyodide.asm.mjs"), withAssignments(loader, found, isKept));
const count = (module) => WebAssembly.Module.exports(module).length;
console.log(`${count(new WebAssembly.Module(lean))} of ${count(main)} exports`);
