"""The worker: bring its files here, start it, ask it, notice when it fails, start another."""

import asyncio
import json
from typing import Any

from pyscript import document, window, workers
from pyscript.ffi import create_proxy

WORKER = "calc"
MANIFEST = "vendor/boot.json"
SNAPSHOT = "vendor/snapshot/"
# What the worker starts from besides the runtime; PyScript says nothing when one of them is missing.
STARTING_FILES = ("pyscript.toml", "calc/worker.py", "static/interpreter.mjs")

START_SECONDS = 60
ANSWER_SECONDS = 12
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


class Download:
    """Files on their way into the browser's cache, counted in bytes, so that the worker finds them there."""

    def __init__(self, files: list[dict[str, Any]], progress: Any) -> None:
        self.files = files
        self.progress = progress
        self.total = sum(file["bytes"] for file in files)
        self.done = 0
        self.missing: Failure | None = None

    async def _try(self, file: dict[str, Any]) -> None:
        """Bring a file; where it is one of the snapshot's, Python starts without it, only later."""
        try:
            await self._bring(file)
        except Failure as failure:
            if not file["path"].startswith(SNAPSHOT):
                raise
            self.missing = failure

    async def _bring(self, file: dict[str, Any]) -> None:
        response = await _response(file["path"])
        reader = response.body.getReader()
        size = 0
        while True:
            try:
                chunk = await reader.read()
            except Exception as error:
                raise Failure(f"{file['path']} stopped on its way.", _said(error)) from None
            if chunk.done:
                break
            size += chunk.value.length
            self.done += chunk.value.length
            self.progress(self.done, self.total)
        if size != file["bytes"]:
            raise Failure(f"{file['path']} is broken: {size} bytes came, {file['bytes']} were expected.")

    async def run(self) -> None:
        """Bring all files, side by side."""
        await asyncio.gather(*[self._try(file) for file in self.files])


class Runtime:
    """One worker at a time. After a failure, `start` gives a new one; what the old one still says is ignored."""

    def __init__(self) -> None:
        self.generation = 0
        self.worker: Any = None
        self.script: Any = None
        self.manifest: dict[str, Any] = {}

    async def start(self, progress: Any) -> None:
        """Load the runtime's files and start a worker that has said hello."""
        generation = self.generation
        await asyncio.gather(*[_response(path) for path in STARTING_FILES])
        response = await _response(MANIFEST)
        try:
            self.manifest = json.loads(await response.text())
        except ValueError:
            raise Failure(f"{MANIFEST} is broken.") from None
        download = Download(self.manifest["runtime"], progress("Loading Python"))
        await download.run()
        progress("Starting Python")(1, 1)
        try:
            self.worker = await self._limited(self._new_worker(generation), START_SECONDS, "Python did not start")
            await self.ask("hello")
        except Failure as failure:
            raise (download.missing or failure) from None

    async def _new_worker(self, generation: int) -> Any:
        name = f"{WORKER}-{generation}" if generation else WORKER
        script = document.createElement("script")
        for attribute, value in (
            ("type", "py"),
            ("worker", ""),
            ("name", name),
            ("src", "./calc/worker.py"),
            ("config", "./pyscript.toml"),
        ):
            script.setAttribute(attribute, value)
        self.script = script
        document.body.append(script)
        try:
            return await workers[name]
        except Exception as error:
            raise Failure("Python could not start in this browser.", _said(error)) from None

    async def _limited(self, waiting: Any, seconds: float, what: str) -> Any:
        """Wait for an answer, but not for ever: a worker that hangs says nothing."""
        try:
            return await asyncio.wait_for(waiting, seconds)
        except asyncio.TimeoutError:
            raise Failure(f"{what} within {seconds} seconds.") from None

    async def load_figures(self, progress: Any) -> None:
        """Bring numpy and matplotlib and load them into the worker."""
        await Download(self.manifest["figures"], progress("Loading figures")).run()
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


async def storage_works() -> bool:
    """Whether the browser lets this page keep data; the runtime needs that, and sandboxed frames refuse it."""
    settled = asyncio.Event()
    try:
        request = window.indexedDB.open("batch-size-optimizer-probe")
    except Exception:
        return False
    request.onsuccess = request.onerror = create_proxy(lambda _event: settled.set())
    await settled.wait()
    if request.error:
        return False
    request.result.close()
    return True
