"""What the build changes in the JavaScript of others, so that a start takes less of it. Each change says what it saves.

They name what they replace, and the build stops where a new version no longer has it.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from tools.embed import once


class Change(NamedTuple):
    """What stands once in a loader, and what takes its place."""

    old: str
    new: str


# Pyodide's loader is one function of a megabyte. In brackets, the browser compiles it at once; without them it looks
# through it for errors first, which takes nearly as long, and compiles it when it is called.
AT_ONCE = (
    Change(
        old="async function _createPyodideModule(",
        new="const _createPyodideModule=(async function(",
    ),
    Change(
        old="return moduleRtn}export default",
        new="return moduleRtn});export default",
    ),
)
# It lists the names that its WebAssembly exports three times over.
LISTS = (
    Change(
        old="for(var[sym,exp]of Object.entries(exports)){const setImport=target=>{if(!isSymbolDefined(target)){"
        'wasmImports[target]=exp}};setImport(sym);const main_alias="__main_argc_argv";if(sym=="main"){'
        'setImport(main_alias)}if(sym==main_alias){setImport("main")}}',
        new='for(var sym in exports){const main_alias="__main_argc_argv";for(const target of sym=="main"?'
        '[sym,main_alias]:sym==main_alias?[sym,"main"]:[sym]){'
        "if(!isSymbolDefined(target)){wasmImports[target]=exports[sym]}}}",
    ),
    Change(
        old='isInternalSym=symName=>["memory"',
        new='internalSyms=new Set(["memory"',
    ),
    Change(
        old='"__stop_em_js"].includes(symName)||symName.startsWith("__em_js__")',
        new='"__stop_em_js"]);var isInternalSym=symName=>internalSyms.has(symName)||symName.startsWith("__em_js__")',
    ),
)
# Each of them had a WebAssembly.Global, a buffer of its own, for libraries that may ask for it: now when one does.
GLOBALS = (
    Change(
        old='var rtn=GOT[symName];if(!rtn){rtn=GOT[symName]=new WebAssembly.Global({value:"i32",mutable:true},-1)}',
        new="var rtn=GOT[symName];if(!(rtn instanceof WebAssembly.Global)){if(!rtn){unresolved.push(symName)}"
        'rtn=GOT[symName]=new WebAssembly.Global({value:"i32",mutable:true},rtn?.value??-1)}',
    ),
    Change(
        old='GOT[symName]??=new WebAssembly.Global({value:"i32",mutable:true});GOT[symName].value=newValue',
        new="(GOT[symName]??={}).value=newValue|0",
    ),
    Change(
        old="var GOT={};",
        new="var GOT={},unresolved=[];",
    ),
    Change(
        old="for(var[symName,entry]of Object.entries(GOT)){if(entry.value==-1){",
        new="for(var symName of unresolved.splice(0)){var entry=GOT[symName];if(entry.value==-1){",
    ),
)
# For each of 260 functions it provoked an error and compiled a module, though few signatures are different.
WRAPPERS = (
    Change(
        old="try{setWasmTableEntry(ret,func)}catch(err){if(!(err instanceof TypeError)){throw err}"
        "var wrapped=convertJsFunctionToWasm(func,sig);setWasmTableEntry(ret,wrapped)}",
        new="setWasmTableEntry(ret,sig?convertJsFunctionToWasm(func,sig):func);",
    ),
    Change(
        old="var convertJsFunctionToWasm=(func,sig)=>{var bytes=Uint8Array.of(",
        new="var wrappers={};var convertJsFunctionToWasm=(func,sig)=>{"
        "var module=wrappers[sig]??=new WebAssembly.Module(Uint8Array.of(",
    ),
    Change(
        old=",7,5,1,1,102,0,0);var module=new WebAssembly.Module(bytes);",
        new=",7,5,1,1,102,0,0));",
    ),
)

# Each module that Python imports is looked for under several names, and MicroPython's file system made an error with a
# trace of the stack for each that is not there.
ERROR_WITHOUT_TRACE = Change(
    old='ErrnoError:class extends Error{name="ErrnoError";constructor(errno){for(var key in super(runtimeInitialized?'
    '(errno=>UTF8ToString(_strerror(errno)))(errno):""),this.errno=errno,ERRNO_CODES)'
    "if(ERRNO_CODES[key]===errno){this.code=key;break}}}",
    new='ErrnoError:class{name="ErrnoError";constructor(errno){this.errno=errno}}',
)

# PyScript looks through all attributes of all elements for those that name a Python function, such as mpy-click.
EVENT_ATTRIBUTES = Change(
    old="if(fn.length)for(let{name:t,ownerElement:n}of _n(",
    new="if(0)for(let{name:t,ownerElement:n}of _n(",
)
# Of its own Python package, what the page's modules import. MicroPython would compile the rest at each start.
PACKAGE_MODULES = ("__init__.py", "context.py", "ffi.py", "util.py")
PACKAGE_MARK = "{pyscript:"
IMPORT_FROM_PACKAGE = re.compile(r"\bfrom pyscript\.(\w+) import ")

NOTICE = "// Changed by tools/loaders.py of the project that ships it.\n"


def pyodide(loader: str) -> str:
    """Change Pyodide's loader."""
    for change in (*AT_ONCE, *LISTS, *GLOBALS, *WRAPPERS):
        loader = once(loader, *change)
    return NOTICE + loader


def micropython(loader: str) -> str:
    """Change MicroPython's loader."""
    return NOTICE + once(loader, *ERROR_WITHOUT_TRACE)


def pyscript(core: str) -> str:
    """Change PyScript's core: without event attributes, and what the page does not use of its Python package."""
    core = once(core, *EVENT_ATTRIBUTES)
    place = core.index(PACKAGE_MARK) + len(PACKAGE_MARK)
    package, end = json.JSONDecoder().raw_decode(core, place)
    lean = {name: package[name] for name in PACKAGE_MODULES}
    lean["__init__.py"] = "\n".join(
        line
        for line in lean["__init__.py"].splitlines()
        if not (found := IMPORT_FROM_PACKAGE.search(line)) or f"{found[1]}.py" in lean
    )
    return NOTICE + core[:place] + json.dumps(lean, separators=(",", ":")) + core[end:]
