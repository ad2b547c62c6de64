"""The static host that `make serve` and the end-to-end tests use behaves as GitHub Pages does."""

import gzip
import http.client
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPResponse
from pathlib import Path

import pytest

from tools.serve import LOOPBACK, Link, StaticServer

Get = Callable[..., HTTPResponse]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    (site / "calc").mkdir(parents=True)
    (site / "index.html").write_text("<!doctype html><title>Page</title>")
    (site / "core.wasm").write_bytes(b"\0asm" * 100)
    (site / "some.whl").write_bytes(b"PK" * 100)
    (site / "calc" / "__init__.py").write_text("")
    (tmp_path / "secret.txt").write_text("not served")
    return site


@pytest.fixture
def get(folder: Path) -> Iterator[Get]:
    with StaticServer(folder, "/a/b/") as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

        def request(path: str, method: str = "GET", **headers: str) -> HTTPResponse:
            connection = http.client.HTTPConnection(LOOPBACK, server.server_port, timeout=10)
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            response.body = response.read()  # type: ignore[attr-defined]
            connection.close()
            return response

        yield request
        server.shutdown()


def body(response: HTTPResponse) -> bytes:
    return bytes(response.body)  # type: ignore[attr-defined]


def test_a_folder_answers_with_its_index(get: Get) -> None:
    response = get("/a/b/?query")
    assert response.status == 200
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert b"Page" in body(response)


@pytest.mark.parametrize(
    "path", ["/", "/index.html", "/a/", "/a/b/missing", "/a/b/../../secret.txt", "/a/b/%2e%2e/secret.txt"]
)
def test_nothing_outside_the_mount_is_served(get: Get, path: str) -> None:
    response = get(path)
    assert response.status == 404
    assert b"not served" not in body(response)


@pytest.mark.parametrize(("path", "target"), [("/a/b", "/a/b/"), ("/a/b/calc", "/a/b/calc/")])
def test_a_folder_without_its_slash_redirects(get: Get, path: str, target: str) -> None:
    response = get(path)
    assert (response.status, response.headers["Location"]) == (301, target)


def test_webassembly_has_its_type_and_travels_compressed(get: Get) -> None:
    response = get("/a/b/core.wasm", Accept_Encoding="gzip, deflate, br")
    assert response.headers["Content-Type"] == "application/wasm"
    assert response.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(body(response)) == b"\0asm" * 100
    assert get("/a/b/core.wasm").headers["Content-Encoding"] is None


def test_archives_travel_as_they_are(get: Get) -> None:
    assert get("/a/b/some.whl", Accept_Encoding="gzip").headers["Content-Encoding"] is None


def test_an_unchanged_file_is_not_sent_again(get: Get) -> None:
    first = get("/a/b/index.html")
    again = get("/a/b/index.html", If_None_Match=first.headers["ETag"])
    assert (again.status, body(again)) == (304, b"")
    assert first.headers["Cache-Control"] == "max-age=600"


def test_headers_are_those_of_a_plain_static_host(get: Get) -> None:
    headers = get("/a/b/").headers
    assert headers["Access-Control-Allow-Origin"] == "*"
    assert "Cross-Origin-Opener-Policy" not in headers
    assert "Cross-Origin-Embedder-Policy" not in headers


def test_head_answers_without_a_body(get: Get) -> None:
    response = get("/a/b/core.wasm", method="HEAD")
    assert (response.headers["Content-Length"], body(response)) == ("400", b"")


def test_jekyll_hides_underscores_unless_told_not_to(get: Get, folder: Path) -> None:
    assert get("/a/b/calc/__init__.py").status == 404
    (folder / ".nojekyll").touch()
    assert get("/a/b/calc/__init__.py").status == 200


def test_a_slow_line_takes_its_time_whoever_asks() -> None:
    line = Link(bits_per_second=8_000_000, latency_seconds=0.04)
    begin = time.monotonic()
    threads = [threading.Thread(target=lambda: list(line.pieces(b"x" * 100_000))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - begin >= 0.24
    assert b"".join(line.pieces(b"some")) == b"some"
