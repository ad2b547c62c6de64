"""Fetch the official wheels that the page ships, each verified by the hash in Pyodide's own lock.

Two transports carry the same bytes: upstream's CDN, and a wheel on PyPI that packs a copy of them. Whatever carried
a file, it is taken only when its sha256 is the one that the npm package `pyodide` names.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# numpy and matplotlib, and what they import for SVG and PNG figures. Left out of matplotlib's dependencies: fonttools
# (PDF and PostScript only) and pytz (imported by nothing here).
PACKAGES = (
    "numpy",
    "matplotlib",
    "contourpy",
    "kiwisolver",
    "pillow",
    "cycler",
    "packaging",
    "pyparsing",
    "python-dateutil",
    "six",
)
# A wheel on PyPI that carries a copy of the Pyodide distribution as its members.
CARRIER = "open_webui==0.12.4"
CARRIER_FOLDER = "open_webui/frontend/pyodide/"
CDN_TIMEOUT_SECONDS = 15


class FetchError(Exception):
    """A wheel could not be had. The message names the file, its hash and what each transport answered."""


@dataclass(frozen=True)
class Wheel:
    """An official wheel as Pyodide's lock names it."""

    file_name: str
    sha256: str

    def matches(self, content: bytes) -> bool:
        """Tell whether these bytes are this wheel."""
        return hashlib.sha256(content).hexdigest() == self.sha256


def wanted_wheels(lock: dict[str, dict[str, dict[str, str]]]) -> list[Wheel]:
    """Read the wheels of `PACKAGES` from the content of `pyodide-lock.json`."""
    return [Wheel(lock["packages"][name]["file_name"], lock["packages"][name]["sha256"]) for name in PACKAGES]


def cdn_base(pyodide: Path) -> str:
    """Read the address of upstream's CDN from Pyodide's own loader, for its own version."""
    version: str = json.loads((pyodide / "package.json").read_text())["version"]
    template = re.search(r"`(https://[^`$]+/v)\$\{\w+\}(/full/)`", (pyodide / "pyodide.mjs").read_text())
    if template is None:
        raise FetchError("pyodide.mjs names no CDN")
    return template[1] + version + template[2]


class Cdn:
    """Upstream's CDN. After the first failed connection it is not asked again."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._down = ""

    def __call__(self, wheel: Wheel) -> bytes:
        """Return the wheel's bytes, or raise `FetchError`."""
        if self._down:
            raise FetchError(self._down)
        try:
            with urllib.request.urlopen(self._base + wheel.file_name, timeout=CDN_TIMEOUT_SECONDS) as response:  # noqa: S310 - the address is https, from Pyodide's loader
                return bytes(response.read())
        except urllib.error.HTTPError as error:
            raise FetchError(f"upstream's CDN answered {error.code}") from error
        except OSError as error:
            self._down = f"upstream's CDN cannot be reached ({error})"
            raise FetchError(self._down) from error


class Carrier:
    """The PyPI wheel that packs a copy, fetched once through pip and kept for later builds."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._failed = ""

    def __call__(self, wheel: Wheel) -> bytes:
        """Return the wheel's bytes, or raise `FetchError`."""
        with zipfile.ZipFile(self._archive()) as archive:
            try:
                return archive.read(CARRIER_FOLDER + wheel.file_name)
            except KeyError as error:
                raise FetchError(f"{CARRIER} does not carry it") from error

    def _archive(self) -> Path:
        if self._failed:
            raise FetchError(self._failed)
        pattern = CARRIER.replace("==", "-") + "-*.whl"
        found = next(self._cache.glob(pattern), None)
        if found is None:
            print(f"fetching {CARRIER} through pip")
            # Downloaded beside the cache and moved in whole, so an interrupted download is never taken for a full one.
            self._cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._cache) as folder:
                command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, CARRIER]
                if subprocess.run(command, check=False).returncode:
                    self._failed = f"pip could not download {CARRIER}"
                    raise FetchError(self._failed)
                downloaded = next(Path(folder).glob(pattern))
                found = downloaded.rename(self._cache / downloaded.name)
        return found


def fetch(wheel: Wheel, transports: list[Callable[[Wheel], bytes]]) -> bytes:
    """Return the wheel's verified bytes from the first transport that has them.

    Raises
    ------
    FetchError
        No transport gave bytes with the right hash.
    """
    reasons = []
    for transport in transports:
        try:
            content = transport(wheel)
        except FetchError as error:
            reasons.append(str(error))
            continue
        if wheel.matches(content):
            return content
        reasons.append(f"a file with sha256 {hashlib.sha256(content).hexdigest()} came instead")
    raise FetchError(f"{wheel.file_name} (sha256 {wheel.sha256}) cannot be had: {'; '.join(reasons)}")


def main() -> int:
    """Bring the folder of wheels up to date with the lock."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pyodide", type=Path, help="the installed npm package")
    parser.add_argument("wheels", type=Path, help="where the wheels go")
    parser.add_argument("cache", type=Path, help="where the carrier is kept")
    arguments = parser.parse_args()
    wheels: Path = arguments.wheels
    wheels.mkdir(parents=True, exist_ok=True)
    wanted = wanted_wheels(json.loads((arguments.pyodide / "pyodide-lock.json").read_text()))
    for old in set(wheels.iterdir()) - {wheels / wheel.file_name for wheel in wanted}:
        old.unlink()
    transports: list[Callable[[Wheel], bytes]] = [Cdn(cdn_base(arguments.pyodide)), Carrier(arguments.cache)]
    try:
        for wheel in wanted:
            path = wheels / wheel.file_name
            if not (path.exists() and wheel.matches(path.read_bytes())):
                path.write_bytes(fetch(wheel, transports))
                print(f"{wheel.file_name} verified")
    except FetchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
