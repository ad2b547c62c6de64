"""The worker: start it, hear how far it is, ask it, notice when it fails, start another."""

import asyncio
import json
from typing import Any

from pyscript import document, window, workers
from pyscript.ffi import create_proxy

WORKER = "calc"
# What the worker starts from besides the runtime; PyScript says nothing when one of them is missing.
CONFIGURATION = "pyscript.toml"
STARTING_FILES = ("calc/worker.py", "static/interpreter.mjs", "static/snapshot.mjs")

LOOK_SECONDS = 0.01
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


def _worker_script(name: str) -> Any:
    """Put the element into the page from which PyScript starts a worker."""
    script = document.createElement("script")
    for attribute, value in (
        ("type", "py"),
        ("worker", ""),
        ("name", name),
        ("src", "./calc/worker.py"),
        ("config", "./pyscript.toml"),
    ):
        script.setAttribute(attribute, value)
    document.body.append(script)
    return script


class Runtime:
    """One worker at a time. After a failure, `start` gives a new one; what the old one still says is ignored."""

    def __init__(self) -> None:
        self.generation = 0
        self.worker: Any = None
        self.script: Any = None

    async def start(self, progress: Any) -> None:
        """Start a worker that has said hello, or say which of its files is missing."""
        # Without its configuration PyScript would look for Python elsewhere.
        await _response(CONFIGURATION)
        await asyncio.gather(self._start(progress), *[_response(path) for path in STARTING_FILES])

    async def _start(self, progress: Any) -> None:
        self.worker = await self._limited(self._new_worker(progress), START_SECONDS, "Python did not start")
        await self.ask("hello")

    async def _new_worker(self, progress: Any) -> Any:
        name = f"{WORKER}-{self.generation}" if self.generation else WORKER
        # static/early.js has started the first one already where the browser keeps its files.
        self.script = document.querySelector(f'script[name="{name}"]') or _worker_script(name)
        settled = asyncio.Event()
        said = {}

        def heard(event: Any) -> None:
            """Take in what static/interpreter.mjs says; everything else is PyScript's own."""
            if hasattr(event.data, "total"):
                done, total = event.data.done, event.data.total
                progress("Loading Python" if done < total else "Starting Python")(done, total)
            elif hasattr(event.data, "failed"):
                said["failed"] = event.data.failed
                settled.set()

        async def ready() -> None:
            try:
                said["worker"] = await workers[name]
            except Exception as error:
                said["failed"] = _said(error)
            settled.set()

        asyncio.create_task(ready())
        while not hasattr(self.script, "xworker"):  # noqa: ASYNC110 - PyScript tells nobody when it has made it
            await asyncio.sleep(LOOK_SECONDS)
        self.script.xworker.addEventListener("message", create_proxy(heard))
        await settled.wait()
        if "failed" in said:
            raise Failure("Python could not start in this browser.", said["failed"])
        return said["worker"]

    async def _limited(self, waiting: Any, seconds: float, what: str) -> Any:
        """Wait for an answer, but not for ever: a worker that hangs says nothing."""
        try:
            return await asyncio.wait_for(waiting, seconds)
        except asyncio.TimeoutError:
            raise Failure(f"{what} within {seconds} seconds.") from None

    async def load_figures(self, progress: Any) -> None:
        """Have the worker load numpy and matplotlib."""
        progress("Starting figures")(1, 1)
        await self.ask("load_figures", seconds=FIGURES_SECONDS)

    async def ask(self, name: str, *arguments: Any, seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
        """Call an exported function and read its envelope."""

        async def call() -> Any:
            return await getattr(self.worker, name)(*arguments)

        try:
            text = await self._limited(call(), seconds, "Python did not answer")
        except Failure:
            raise
        except Exception as error:
            raise Failure("Python stopped with an error.", _said(error)) from None
        answer: dict[str, Any] = json.loads(text)
        return answer

    def stop(self) -> None:
        """End the worker, if there is one, and let nothing that it still says count."""
        self.generation += 1
        self.worker = None
        if self.script is not None:
            if hasattr(self.script, "xworker"):
                self.script.xworker.terminate()
            self.script.remove()
            self.script = None
