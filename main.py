"""Starts the page's Python (MicroPython, main thread), in steps between which the page reacts."""

import asyncio
import io
import json
import os
import sys

from pyscript import window

# Otherwise looked for in the file system again by each module that imports it.
sys.modules["json"] = json

# A step between two breaths takes as long as one module does, or this: each breath costs 4 ms, the browser's least.
STEP_MILLISECONDS = 6


def unpack(name: str) -> None:
    """Write out what the build packed: for each file a line with its name and size, then its bytes."""
    os.mkdir("page")
    # At once: each reading, of 256 bytes else, is a call of the file system in JavaScript.
    with open(name, "rb") as file:
        pack = io.BytesIO(file.read(os.stat(name)[6]))
    while line := pack.readline().split():
        with open(line[0], "wb") as file:
            file.write(pack.read(int(line[1])))


# What page/app.py imports, what is imported by others first: each is a step.
MODULES = "words format html link fields files combobox form embedding keep runtime app".split()


async def start() -> None:
    """Unpack and import the page's modules, then bring the page to life."""
    # As page/breath.py says, which is not there yet: PyScript has just kept the browser waiting.
    await asyncio.sleep(0.001)
    unpack("page.pack")
    from page.breath import breath  # noqa: PLC0415 - now it is there

    began = 0.0
    for name in MODULES:
        if window.performance.now() - began > STEP_MILLISECONDS:
            await breath()
            began = window.performance.now()
        __import__(f"page.{name}")
    await breath()
    from page.app import start as start_page  # noqa: PLC0415 - now it is there

    await start_page()


asyncio.create_task(start())
