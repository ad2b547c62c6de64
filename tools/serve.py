"""Serve a folder on the loopback address as a plain static host does, GitHub Pages above all.

Like there: a site may sit at a sub-path, text and WebAssembly travel compressed, answers may be kept for ten minutes,
any origin may read them, and no header asks for cross-origin isolation.
"""

import argparse
import gzip
import hashlib
import posixpath
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import cache, partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

LOOPBACK = "127.0.0.1"
GITHUB_PAGES_MAX_AGE_SECONDS = 600

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/vnd.microsoft.icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".py": "text/x-python; charset=utf-8",
    ".svg": "image/svg+xml",
    ".toml": "application/toml",
    ".txt": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
    ".zip": "application/zip",
}
OTHER_TYPE = "application/octet-stream"
COMPRESSED_SUFFIXES = frozenset({".css", ".html", ".js", ".json", ".mjs", ".svg", ".txt", ".wasm", ".webmanifest"})


@cache
def compressed(path: Path, modified_ns: int) -> bytes:  # noqa: ARG001 - part of the cache's key
    """Return the file's content in gzip form, made once for each version of the file."""
    return gzip.compress(path.read_bytes(), compresslevel=6, mtime=0)


class Link:
    """A slow line that all answers of a server share.

    Parameters
    ----------
    bits_per_second
        What goes over it.
    latency_seconds
        How long each answer takes to begin.
    """

    PIECE_BYTES = 16384

    def __init__(self, bits_per_second: float, latency_seconds: float) -> None:
        self._bits_per_second = bits_per_second
        self._latency_seconds = latency_seconds
        self._lock = threading.Lock()
        self._free_at = 0.0

    def pieces(self, body: bytes) -> Iterator[bytes]:
        """Yield the body piece by piece, each when the line has carried it."""
        time.sleep(self._latency_seconds)
        for start in range(0, len(body), self.PIECE_BYTES):
            piece = body[start : start + self.PIECE_BYTES]
            with self._lock:
                self._free_at = max(self._free_at, time.monotonic()) + 8 * len(piece) / self._bits_per_second
                arrives = self._free_at
            time.sleep(max(0.0, arrives - time.monotonic()))
            yield piece


class StaticHandler(BaseHTTPRequestHandler):
    """Answers GET and HEAD for the files of one folder."""

    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments: object, folder: Path, mount: str, max_age_seconds: int, quiet: bool) -> None:
        self._folder = folder
        self._mount = mount
        self._max_age_seconds = max_age_seconds
        self._quiet = quiet
        super().__init__(*arguments)  # type: ignore[arg-type] # what socketserver passes on

    def do_GET(self) -> None:
        """Answer with the file's content."""
        self._answer()

    def do_HEAD(self) -> None:
        """Answer with the headers alone."""
        self._answer()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Log a request unless the server was asked to be quiet."""
        if not self._quiet:
            super().log_message(format, *args)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Note a request's path for whoever wants to know."""
        self.server.requested.append(self.path)  # type: ignore[attr-defined] # StaticServer's
        super().log_request(code, size)

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path + "/" == self._mount:
            self._redirect(self._mount)
            return
        if not path.startswith(self._mount):
            self._refuse()
            return
        parts = posixpath.normpath("/" + path.removeprefix(self._mount)).strip("/").split("/")
        file = self._folder.joinpath(*parts)
        if file.is_dir():
            if not path.endswith("/"):
                self._redirect(path + "/")
                return
            file /= "index.html"
        if not file.is_file() or self._is_hidden(parts):
            self._refuse()
            return
        self._send_file(file)

    def _is_hidden(self, parts: Sequence[str]) -> bool:
        """Tell whether Jekyll, through which GitHub Pages puts every site, would leave this path out."""
        return any(part.startswith(("_", ".")) for part in parts) and not (self._folder / ".nojekyll").exists()

    def _redirect(self, path: str) -> None:
        self.send_response(HTTPStatus.MOVED_PERMANENTLY)
        self.send_header("Location", path)
        self._end_headers(0)

    def _refuse(self) -> None:
        body = b"<!doctype html><title>Not found</title><p>There is nothing here."
        self.send_response(HTTPStatus.NOT_FOUND)
        self.send_header("Content-Type", TYPES[".html"])
        self._send_body(body)

    def _send_file(self, file: Path) -> None:
        zipped = file.suffix in COMPRESSED_SUFFIXES and "gzip" in self.headers.get("Accept-Encoding", "")
        body = compressed(file, file.stat().st_mtime_ns) if zipped else file.read_bytes()
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        known = self.headers.get("If-None-Match") == tag
        self.send_response(HTTPStatus.NOT_MODIFIED if known else HTTPStatus.OK)
        self.send_header("ETag", tag)
        self.send_header("Cache-Control", f"max-age={self._max_age_seconds}")
        if known:
            self._end_headers(None)
            return
        self.send_header("Content-Type", TYPES.get(file.suffix, OTHER_TYPE))
        self.send_header("Vary", "Accept-Encoding")
        if zipped:
            self.send_header("Content-Encoding", "gzip")
        self._send_body(body)

    def _send_body(self, body: bytes) -> None:
        self._end_headers(len(body))
        if self.command != "HEAD":
            link: Link | None = self.server.link  # type: ignore[attr-defined] # StaticServer's, as the next
            for piece in link.pieces(body) if link else (body,):
                self.wfile.write(piece)
                self.server.sent.append((time.time(), len(piece)))  # type: ignore[attr-defined]

    def _end_headers(self, length: int | None) -> None:
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.send_header("Access-Control-Allow-Origin", "*")
        self.end_headers()


def compress_in_advance(folder: Path) -> None:
    """Make the gzip form of a folder's files before anyone asks, as a host has done long before."""
    for path in folder.rglob("*"):
        if path.suffix in COMPRESSED_SUFFIXES and path.is_file():
            compressed(path, path.stat().st_mtime_ns)


class StaticServer(ThreadingHTTPServer):
    """A static host for one folder on the loopback address.

    Parameters
    ----------
    folder
        What is served.
    mount
        The path at which the folder appears, `/` or `/like/this/`; everything else is not found.
    port
        0 for one that is free.
    max_age_seconds
        How long a browser may keep an answer without asking again.
    quiet
        Whether requests go unlogged.
    link
        A line to send the answers over; none is as fast as the machine.
    """

    daemon_threads = True

    def __init__(
        self,
        folder: Path,
        mount: str = "/",
        port: int = 0,
        *,
        max_age_seconds: int = GITHUB_PAGES_MAX_AGE_SECONDS,
        quiet: bool = True,
        link: Link | None = None,
    ) -> None:
        options = {"folder": folder, "mount": mount, "max_age_seconds": max_age_seconds, "quiet": quiet}
        super().__init__((LOOPBACK, port), partial(StaticHandler, **options))  # type: ignore[arg-type]
        self.mount = mount
        self.link = link
        self.requested: list[str] = []
        """The path of each request so far."""
        self.sent: list[tuple[float, int]] = []
        """When each piece of an answer's body was sent, in seconds since the epoch, and its bytes as they travelled."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over connections that the browser broke off, as it does when a page is left while it loads."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """The address of the folder, with a slash at its end."""
        return f"http://{LOOPBACK}:{self.server_port}{self.mount}"


def main() -> None:
    """Serve a folder until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0, help="default: one that is free")
    parser.add_argument("--mount", default="/", help="the sub-path at which the folder appears, such as /app/")
    arguments = parser.parse_args()
    # Whoever serves from a working tree changes it, and wants to see the change.
    with StaticServer(arguments.folder, arguments.mount, arguments.port, max_age_seconds=0, quiet=False) as server:
        print(f"Serving {arguments.folder} at {server.url} (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    main()
