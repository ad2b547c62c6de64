"""Wheels are taken only with the right hash, whatever carries them, and a failure names the file and the hash."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from tools.wheels import (
    CARRIER_FOLDER,
    PACKAGES,
    Carrier,
    Cdn,
    FetchError,
    Wheel,
    cdn_base,
    fetch,
    wanted_wheels,
)

CONTENT = b"the wheel's bytes"
WHEEL = Wheel("some-1.0-py3-none-any.whl", hashlib.sha256(CONTENT).hexdigest())


def refuses(wheel: Wheel) -> bytes:
    raise FetchError(f"no road to {wheel.file_name}")


def gives_other_bytes(_: Wheel) -> bytes:
    return b"an error page"


def gives_the_wheel(_: Wheel) -> bytes:
    return CONTENT


@pytest.mark.parametrize("first", [refuses, gives_other_bytes])
def test_the_second_transport_serves_where_the_first_does_not(first: "type[bytes]") -> None:
    assert fetch(WHEEL, [first, gives_the_wheel]) == CONTENT


def test_an_error_names_the_file_its_hash_and_what_happened() -> None:
    with pytest.raises(FetchError) as failure:
        fetch(WHEEL, [refuses, gives_other_bytes])
    message = str(failure.value)
    assert WHEEL.file_name in message
    assert WHEEL.sha256 in message
    assert "no road to" in message
    assert hashlib.sha256(b"an error page").hexdigest() in message


def test_the_carrier_gives_its_members(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "open_webui-0.12.4-py3-none-any.whl", "w") as archive:
        archive.writestr(CARRIER_FOLDER + WHEEL.file_name, CONTENT)
    carrier = Carrier(tmp_path)
    assert carrier(WHEEL) == CONTENT
    with pytest.raises(FetchError, match="does not carry it"):
        carrier(Wheel("other.whl", ""))


def test_an_unreachable_cdn_is_asked_once() -> None:
    cdn = Cdn("https://cdn.invalid/")
    with pytest.raises(FetchError, match="cannot be reached") as first:
        cdn(WHEEL)
    with pytest.raises(FetchError, match="cannot be reached") as second:
        cdn(WHEEL)
    assert str(first.value) == str(second.value)


def test_the_cdn_is_the_one_that_pyodide_names(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"version": "1.2.3"}')
    (tmp_path / "pyodide.mjs").write_text("a??`https://cdn.example/pyodide/v${U}/full/`)")
    assert cdn_base(tmp_path) == "https://cdn.example/pyodide/v1.2.3/full/"
    (tmp_path / "pyodide.mjs").write_text("")
    with pytest.raises(FetchError):
        cdn_base(tmp_path)


def test_the_lock_names_each_wanted_wheel() -> None:
    packages = {name: {"file_name": f"{name}.whl", "sha256": f"hash of {name}"} for name in PACKAGES}
    packages["fonttools"] = {"file_name": "fonttools.whl", "sha256": "not wanted"}
    assert wanted_wheels({"packages": packages}) == [Wheel(f"{name}.whl", f"hash of {name}") for name in PACKAGES]
