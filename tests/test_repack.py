"""The repacked runtime: compiled, trimmed, the same from the same input, and named rightly by its lock."""

import io
import json
import re
import zipfile
from importlib.util import MAGIC_NUMBER, module_from_spec
from pathlib import Path
from types import ModuleType
from zipimport import zipimporter

import matplotlib as mpl
import pytest

from tools.build import ROOT
from tools.repack import (
    COLOUR_MAPS,
    DEFAULT_MAP,
    FONT_LIST,
    FONTS_FOLDER,
    IN_PLACE,
    default_colours,
    packed,
    pruned_lock,
    repacked,
    wanted,
)

SOURCE = b'"""Said at length."""\nANSWER = 42\n\ndef f():\n    """Do."""\n    assert False\n    return ANSWER\n'


def archive(**members: bytes) -> zipfile.ZipFile:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return zipfile.ZipFile(buffer)


@pytest.mark.parametrize(
    "name",
    [
        "numpy/_core/numeric.py",
        "numpy/linalg/_umath_linalg.cpython-314-wasm32-emscripten.so",
        "matplotlib/mpl-data/matplotlibrc",
        FONTS_FOLDER + "DejaVuSans.ttf",
        "json/decoder.py",
    ],
)
def test_what_figures_need_is_kept(name: str) -> None:
    assert wanted(name)


@pytest.mark.parametrize(
    "name",
    [
        "numpy/_core/tests/test_numeric.py",
        "numpy/__init__.pyi",
        "matplotlib/mpl-data/sample_data/goog.npz",
        FONTS_FOLDER + "STIXGeneral.ttf",
        "matplotlib/backends/_tkagg.cpython-314-wasm32-emscripten.so",
        "numpy/linalg/",
    ],
)
def test_what_no_page_opens_is_left_out(name: str) -> None:
    assert not wanted(name)


def test_modules_are_compiled_and_import_without_their_source(tmp_path: Path) -> None:
    path = tmp_path / "library.zip"
    path.write_bytes(packed(repacked(archive(**{"answers.py": SOURCE, "data.json": b"{}"}))))
    with zipfile.ZipFile(path) as file:
        assert file.namelist() == ["answers.pyc", "data.json"]
        assert file.read("answers.pyc").startswith(MAGIC_NUMBER)
    importer = zipimporter(str(path))
    spec = importer.find_spec("answers")
    assert spec
    module = module_from_spec(spec)
    importer.exec_module(module)
    assert module.f() == 42
    assert module.__doc__ is None


def test_pyparsing_does_not_bring_what_tests_need() -> None:
    wheel = next((ROOT / ".cache/wheels").glob("pyparsing-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        imported = re.search(
            r"^from \.testing import (\w+)", archive.read("pyparsing/__init__.py").decode(), re.MULTILINE
        )
    assert imported
    assert f"class {imported[1]}:".encode() in IN_PLACE["pyparsing/testing.py"]


def test_the_default_colours_are_matplotlibs_own() -> None:
    wheel = next((ROOT / ".cache/wheels").glob("matplotlib-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        whole = archive.read(COLOUR_MAPS)
        imported = re.findall(
            r"^from matplotlib\.(_cm_\w+) import (\w+)", archive.read("matplotlib/cm.py").decode(), re.MULTILINE
        )
    modules = []
    for source in (whole, default_colours(whole)):
        module = ModuleType("matplotlib.colours")
        module.__package__ = "matplotlib"
        exec(compile(source, COLOUR_MAPS, "exec"), module.__dict__)  # noqa: S102 - matplotlib's own code
        modules.append(module)
    before, after = (module.cmaps for module in modules)
    assert list(after) == [mpl.rcParamsDefault["image.cmap"]]
    assert after[DEFAULT_MAP] == before[DEFAULT_MAP]
    for name, variable in imported:
        place = f"matplotlib/{name}.py"
        assert place == COLOUR_MAPS or IN_PLACE[place].startswith(variable.encode() + b" = ")


def test_the_record_of_hashes_that_no_longer_hold_is_left_out() -> None:
    assert list(repacked(archive(**{"a-1.dist-info/RECORD": b"", "a-1.dist-info/METADATA": b"x"}))) == [
        ("a-1.dist-info/METADATA", b"x")
    ]


def test_the_same_input_gives_the_same_bytes() -> None:
    assert packed(repacked(archive(b=b"2", a=b"1"))) == packed(repacked(archive(a=b"1", b=b"2")))


def test_the_font_list_names_the_shipped_fonts_alone() -> None:
    fonts = {
        "_version": 390,
        "afmlist": [{"fname": "fonts/afm/pcrr8a.afm"}],
        "ttflist": [{"fname": "fonts/ttf/STIXGeneral.ttf"}, {"fname": "fonts/ttf/DejaVuSans.ttf"}],
    }
    ((_, content),) = repacked(archive(**{FONT_LIST: json.dumps(fonts).encode()}))
    assert json.loads(content) == {"_version": 390, "afmlist": [], "ttflist": [{"fname": "fonts/ttf/DejaVuSans.ttf"}]}


def test_the_lock_names_what_is_shipped_with_its_new_hash() -> None:
    lock = {
        "info": {"python": "3.14.0"},
        "packages": {
            "a": {"file_name": "a.whl", "sha256": "old", "depends": ["b", "c"]},
            "b": {"file_name": "b.whl", "sha256": "old", "depends": []},
            "c": {"file_name": "c.whl", "sha256": "old", "depends": []},
        },
    }
    assert pruned_lock(lock, {"a.whl": "1", "b.whl": "2"}) == {
        "info": {"python": "3.14.0"},
        "packages": {
            "a": {"file_name": "a.whl", "sha256": "1", "depends": ["b"]},
            "b": {"file_name": "b.whl", "sha256": "2", "depends": []},
        },
    }
