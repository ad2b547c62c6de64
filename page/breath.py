"""How long work on the main thread gives way to the person."""

import asyncio

# MicroPython's loop goes on by itself after a wait of nothing; the browser has its turn in any other.
BREATH_SECONDS = 0.001


async def breath() -> None:
    """Let the browser react to the person and paint."""
    await asyncio.sleep(BREATH_SECONDS)
