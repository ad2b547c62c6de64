"""The worker: start it, hear how far it is, ask it, notice when it fails, start another."""

import json
from typing import Any

from pyscript import window
from pyscript.ffi import create_proxy

# What Python starts from besides its runtime; where one is missing, its worker cannot say so.
STARTING_FILES = ("static/worker.mjs", "static/snapshot.mjs", "static/carrier.mjs")

START_SECONDS = 60
ANSWER_SECONDS = 30
FIGURES_SECONDS = 60


class Failure(Exception):  # noqa: N818 - it is the page's word for it
    """The worker cannot answer: what happened, for the person who waits, and details for a report."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.details = details


def _said(error: Exception) -> str:
    """What JavaScript's error says; MicroPython gives it as (object, name, message)."""
    return str(error.args[-1]) if error.args else type(error).__name__


def _is_late(error: Exception) -> bool:
    """Whether JavaScript's error says that no answer came in time."""
    return "TimeoutError" in error.args


async def _response(path: str) -> Any:
    """Fetch a file of this site, or say which one did not come and why."""
    try:
        response = await window.fetch(path)
    except Exception as error:
        raise Failure(f"{path} could not be loaded: no connection to this page's server.", _said(error)) from None
    if not response.ok:
        raise Failure(f"{path} could not be loaded: the server answered {response.status}.")
    kind = response.headers.get("content-type") or ""
    if "text/html" in kind:
        raise Failure(f"{path} could not be loaded: the server sent a page in its place.")
    return response


class Runtime:
    """One worker at a time. After a failure, `begin` gives a new one; what the old one still says is ignored."""

    def __init__(self) -> None:
        self.generation = 0
        self.python: Any = None
        self.patience_seconds = START_SECONDS

    def begin(self, progress: Any) -> None:
        """Have Python start; what it is asked for meanwhile it answers as soon as it can."""
        # static/early.js has made the first one, and at all but a first visit has let it begin.
        self.python = getattr(window, "python", None) or window.newPython()

        def heard(event: Any) -> None:
            """Take in what the worker says while it starts."""
            done, total = event.detail.done, event.detail.total
            progress("Loading Python" if done < total else "Starting Python")(done, total)

        self.python.addEventListener("said", create_proxy(heard))
        self.python.begin()
        self.patience_seconds = START_SECONDS

    async def started(self) -> None:
        """Wait until Python is there, or say which of its files is missing."""
        try:
            await self.python.ask(START_SECONDS, "hello")
        except Exception as error:
            if _is_late(error):
                raise Failure(f"Python did not start within {START_SECONDS} seconds.") from None
            for path in STARTING_FILES:
                await _response(path)
            raise Failure("Python could not start in this browser.", _said(error)) from None
        self.patience_seconds = ANSWER_SECONDS

    async def load_figures(self, progress: Any) -> None:
        """Have the worker load numpy and matplotlib."""
        progress("Starting figures")(1, 1)
        await self.told(self.python.ask(FIGURES_SECONDS, "load_figures"))

    def call(self, name: str, *arguments: Any) -> Any:
        """Call an exported function, now; `told` waits for its answer."""
        return self.python.ask(self.patience_seconds, name, *arguments)

    async def told(self, asked: Any) -> dict[str, Any]:
        """Read the envelope that a call gives."""
        try:
            text = await asked
        except Exception as error:
            if _is_late(error):
                raise Failure(f"Python gave {_said(error)}.") from None
            raise Failure("Python stopped with an error.", _said(error)) from None
        answer: dict[str, Any] = json.loads(text)
        return answer

    async def ask(self, name: str, *arguments: Any) -> dict[str, Any]:
        """Call an exported function and read its envelope."""
        return await self.told(self.call(name, *arguments))

    def stop(self) -> None:
        """End the worker, if there is one, and let nothing that it still says count."""
        self.generation += 1
        if self.python is not None:
            self.python.stop()
            self.python = window.python = None
