"""Starts the page's Python (MicroPython, main thread), in steps between which the page reacts."""

import asyncio

from page.breath import breath

# What page/app.py imports, what is imported by others first: each is a step.
MODULES = "words format html link fields files combobox form embedding keep runtime app".split()


async def start() -> None:
    """Import the page's modules, then bring the page to life."""
    for name in MODULES:
        __import__(f"page.{name}")
        await breath()
    from page.app import start as start_page  # noqa: PLC0415 - now it is there

    await start_page()


asyncio.create_task(start())
