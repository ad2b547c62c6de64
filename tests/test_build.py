"""The built site: whole, the same every time, nothing left over."""

import hashlib
import io
import json
import zipfile
from pathlib import Path

import pytest

from tools.build import ROOT, worker_archive, write_site

SITE = ROOT / "_site"


def test_only_what_changed_is_written_and_the_rest_removed(tmp_path: Path) -> None:
    write_site({"a.txt": b"1", "b/c.txt": b"2", "old/d.txt": b"3"}, tmp_path)
    before = (tmp_path / "a.txt").stat().st_mtime_ns
    write_site({"a.txt": b"1", "b/c.txt": b"changed"}, tmp_path)
    assert (tmp_path / "a.txt").stat().st_mtime_ns == before
    assert (tmp_path / "b/c.txt").read_bytes() == b"changed"
    assert not (tmp_path / "old").exists()


def test_calc_is_packed_whole_and_the_same_every_time() -> None:
    content = worker_archive()
    assert content == worker_archive()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = archive.namelist()
    assert {"calc/worker.py", "page/sections.py"} <= set(names)
    assert not [name for name in names if "__pycache__" in name]


@pytest.mark.skipif(not SITE.exists(), reason="`make build` makes the site")
class TestSite:
    def test_every_wheel_in_the_lock_is_there_with_its_hash(self) -> None:
        folder = SITE / "vendor/pyodide"
        lock = json.loads((folder / "pyodide-lock.json").read_text())
        assert lock["packages"]
        for package in lock["packages"].values():
            assert hashlib.sha256((folder / package["file_name"]).read_bytes()).hexdigest() == package["sha256"]
            assert set(package["depends"]) <= {name for name, _ in lock["packages"].items()}
        assert {path.name for path in folder.glob("*.whl")} == {
            package["file_name"] for package in lock["packages"].values()
        }

    @pytest.mark.parametrize("name", ["pyodide", "pyscript-core", "numpy", "matplotlib", "pillow", "micropython"])
    def test_licences_travel_with_what_they_cover(self, name: str) -> None:
        (notice,) = (SITE / "vendor/licences").glob(f"{name}*.txt")
        assert len(notice.read_text()) > 1000

    def test_github_pages_serves_every_file(self) -> None:
        assert (SITE / ".nojekyll").exists()
