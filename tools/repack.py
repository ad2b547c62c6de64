"""Repack the Python runtime for the page: compiled, without what no page needs, the same bytes from the same input.

Run in the Python that will run the result, Pyodide's, since byte code fits one version of Python alone.
"""

import argparse
import ast
import hashlib
import importlib.util
import io
import json
import marshal
import zipfile
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from types import CodeType
from typing import Any

# Docstrings and assertions are left out: they are a third of the byte code, and nobody reads them in a worker.
OPTIMIZATION = 2
# The earliest date that a zip file can name, so that no build depends on the clock.
DATE = (1980, 1, 1, 0, 0, 0)

# What a page that draws line charts never opens. Patterns match whole paths inside the archives.
UNUSED = (
    "*.pyi",
    "*.a",
    "*.pxd",
    "*.h",
    "*.npymath.ini",
    "*/tests/*",
    "*/testing/*.png",
    "dateutil/zoneinfo/*.tar.gz",
    "matplotlib/backends/_tkagg.*",
    "matplotlib/backends/qt_editor/*",
    "matplotlib/backends/web_backend/*",
    "matplotlib/mpl-data/fonts/afm/*",
    "matplotlib/mpl-data/fonts/pdfcorefonts/*",
    "matplotlib/mpl-data/images/*",
    "matplotlib/mpl-data/plot_directive/*",
    "matplotlib/mpl-data/sample_data/*",
    "matplotlib/sphinxext/*",
    "mpl_toolkits/*",
    "numpy/_core/include/*",
    "numpy/_pyinstaller/*",
    "numpy/f2py/*",
    "PIL/_imagingft.*",
    "PIL/_imagingtk.*",
    "PIL/_webp.*",
    "packaging/licenses/*",
    "pyparsing/ai/*",
    "pyparsing/diagram/*",
    # Of the standard library: what talks to a terminal, a mail server, a process.
    "_pyrepl/*",
    "doctest.py",
    "ensurepip/*",
    "idlelib/*",
    "imaplib.py",
    "mailbox.py",
    "pdb.py",
    "poplib.py",
    "pydoc_data/*",
    "smtplib.py",
    "turtle.py",
    "wsgiref/*",
    "xmlrpc/*",
)
# The one font: it draws every label, and formulas in labels as far as it goes.
FONTS_FOLDER = "matplotlib/mpl-data/fonts/ttf/"
FONTS = ("DejaVuSans.ttf",)
FONT_LIST = "matplotlib/fontlist.json"
# What is imported wherever its package is, for nobody: in its place, what its package asks of it. Helpers for tests of
# grammars bring `unittest`, which brings `argparse` and `difflib`. Maps from several numbers to a colour are themselves
# thousands of numbers.
IN_PLACE = {
    "matplotlib/_cm_bivar.py": b"cmaps = {}\n",
    "matplotlib/_cm_multivar.py": b"cmap_families = {}\n",
    "pyparsing/testing.py": b"class pyparsing_test: pass\n",
}
# Maps from a number to a colour, each a table of 768 numbers: the default one is enough.
COLOUR_MAPS, DEFAULT_MAP = "matplotlib/_cm_listed.py", "viridis"
# pyparsing, which reads formulas in labels, tells its own frames by their lines (core.py, _trim_arity).
READ_BY_LINE = "pyparsing/"


def wanted(name: str) -> bool:
    """Tell whether the page may need this member of an archive."""
    if name.startswith(FONTS_FOLDER) and name.endswith(".ttf"):
        return name.removeprefix(FONTS_FOLDER) in FONTS
    return not name.endswith("/") and not any(fnmatch(name, pattern) for pattern in UNUSED)


def one_line(instructions: int) -> bytes:
    """Return the table of lines of code that is all on its first line.

    An entry of the table has two bytes: the kind "no columns" with how many of up to eight instructions it covers, and
    how many lines further they are (Python's Objects/locations.md).
    """
    whole, rest = divmod(instructions, 8)
    no_columns = 0x80 | 13 << 3
    return bytes((no_columns | 7, 0)) * whole + (bytes((no_columns | rest - 1, 0)) if rest else b"")


def with_first_lines(code: CodeType) -> CodeType:
    """Return code that names only the line at which each function begins.

    The table of lines is a third of the byte code, and the page ships no source to look a line up in.
    """
    constants = tuple(with_first_lines(value) if isinstance(value, CodeType) else value for value in code.co_consts)
    return code.replace(co_consts=constants, co_linetable=one_line(len(code.co_code) // 2))


def compile_module(source: bytes, name: str) -> bytes:
    """Return the content of a `.pyc` file for a module's source, one that Python loads without looking at a source."""
    code = compile(source, name, "exec", dont_inherit=True, optimize=OPTIMIZATION)
    if not name.startswith(READ_BY_LINE):
        code = with_first_lines(code)
    unchecked_hash = (0b01).to_bytes(4, "little") + importlib.util.source_hash(source)
    return importlib.util.MAGIC_NUMBER + unchecked_hash + marshal.dumps(code)


def shipped_fonts(font_list: bytes) -> bytes:
    """Return matplotlib's list of fonts with only those that are shipped, so that it is not rebuilt at every start."""
    fonts = json.loads(font_list)
    fonts["afmlist"] = []
    fonts["ttflist"] = [font for font in fonts["ttflist"] if font["fname"].rpartition("/")[2] in FONTS]
    return json.dumps(fonts).encode()


def default_colours(source: bytes) -> bytes:
    """Return matplotlib's module of colour maps with the default one alone, which each area in a figure carries."""
    data = f"_{DEFAULT_MAP}_data"
    kept = [
        ast.unparse(statement)
        for statement in ast.parse(source).body
        if isinstance(statement, ast.ImportFrom)
        or (isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == data)
    ]
    return "\n".join([*kept, f"cmaps = {{{DEFAULT_MAP!r}: ListedColormap({data}, name={DEFAULT_MAP!r})}}\n"]).encode()


# What is shipped in part.
REDUCED = {FONT_LIST: shipped_fonts, COLOUR_MAPS: default_colours}


def repacked(archive: zipfile.ZipFile) -> Iterator[tuple[str, bytes]]:
    """Yield the members of the repacked archive, in order of their names."""
    for name in sorted(archive.namelist()):
        if not wanted(name) or name.endswith(".dist-info/RECORD"):
            continue
        content = IN_PLACE.get(name) or archive.read(name)
        if name in REDUCED:
            content = REDUCED[name](content)
        if name.endswith(".py"):
            yield name + "c", compile_module(content, name)
        else:
            yield name, content


def packed(members: Iterable[tuple[str, bytes]]) -> bytes:
    """Return a zip file with these members, with fixed dates and modes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members:
            member = zipfile.ZipInfo(name, DATE)
            member.external_attr = 0o100644 << 16
            archive.writestr(member, content, zipfile.ZIP_DEFLATED, compresslevel=9)
    return buffer.getvalue()


def pruned_lock(lock: dict[str, Any], hashes: dict[str, str]) -> dict[str, Any]:
    """Return Pyodide's lock with the shipped wheels alone, and their new hashes."""
    shipped = {name: package for name, package in lock["packages"].items() if package["file_name"] in hashes}
    for package in shipped.values():
        package["sha256"] = hashes[package["file_name"]]
        package["depends"] = [name for name in package["depends"] if name in shipped]
    return {"info": lock["info"], "packages": shipped}


def main() -> None:
    """Repack the standard library and the wheels, and write the lock that names them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pyodide", type=Path, help="the installed npm package")
    parser.add_argument("wheels", type=Path, help="the verified official wheels")
    parser.add_argument("out", type=Path, help="where the repacked files go")
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(arguments.pyodide / "python_stdlib.zip") as archive:
        (out / "python_stdlib.zip").write_bytes(packed(repacked(archive)))
    hashes = {}
    for wheel in sorted(arguments.wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            content = packed(repacked(archive))
        (out / wheel.name).write_bytes(content)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            archive.extractall(out / "site-packages")
        hashes[wheel.name] = hashlib.sha256(content).hexdigest()
        print(f"{wheel.name}: {wheel.stat().st_size} -> {len(content)} bytes")
    lock = json.loads((arguments.pyodide / "pyodide-lock.json").read_text())
    (out / "pyodide-lock.json").write_text(json.dumps(pruned_lock(lock, hashes), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
