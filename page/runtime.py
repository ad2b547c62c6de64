"""The worker: start it, hear how far it is, ask it, notice when it fails, start another."""

import asyncio
import json
from typing import Any

from pyscript import document, window, workers
from pyscript.ffi import create_proxy

WORKER = "calc"
# What the worker starts from besides the runtime; PyScript does not say when one of them is missing.
WORKER_FILE = "calc/worker.py"
STARTING_FILES = (WORKER_FILE, "static/interpreter.mjs", "static/snapshot.mjs", "static/carrier.mjs")

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


class Runtime:
    """One worker at a time. After a failure, `start` gives a new one; what the old one still says is ignored."""

    def __init__(self) -> None:
        self.generation = 0
        self.worker: Any = None
        self.script: Any = None

    async def start(self, progress: Any) -> None:
        """Start a worker that has said hello, or say which of its files is missing."""
        try:
            # PyScript would run what comes in its place.
            await asyncio.gather(self._start(progress), _response(WORKER_FILE))
        except Failure:
            for path in STARTING_FILES:
                await _response(path)
            raise

    async def _start(self, progress: Any) -> None:
        self.worker = await self._limited(self._new_worker(progress), START_SECONDS, "Python did not start")
        await self.ask("hello")

    async def _new_worker(self, progress: Any) -> Any:
        name = f"{WORKER}-{self.generation}" if self.generation else WORKER
        # static/early.js has started the first one already.
        self.script = document.querySelector(f'script[name="{name}"]') or window.startWorker(name)
        settled = asyncio.Event()
        said = {}

        def heard(event: Any) -> None:
            """Take in what the worker says while it starts."""
            if event.detail.failed:
                said["failed"] = event.detail.failed
                settled.set()
            else:
                done, total = event.detail.done, event.detail.total
                progress("Loading Python" if done < total else "Starting Python")(done, total)

        async def ready() -> None:
            try:
                said["worker"] = await workers[name]
            except Exception as error:
                said["failed"] = _said(error)
            settled.set()

        asyncio.create_task(ready())
        self.script.addEventListener("said", create_proxy(heard))
        if getattr(self.script, "failed", ""):
            raise Failure("Python could not start in this browser.", self.script.failed)
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
