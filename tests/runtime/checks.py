"""What must come out the same however Python starts: each check gives text that two starts are compared by.

Run by run.mjs inside Pyodide; the page's Python has no pytest.
"""

import hashlib
import importlib
import io
import json
import pathlib
import re
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
from matplotlib import ft2font, rc_context
from matplotlib.figure import Figure
from matplotlib.path import Path
from PIL import Image


def raised(call: Callable[[], object]) -> str:
    """Return the kind and the text of the error that a call ends with."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever comes is what is compared
        return f"{type(error).__name__}: {error}"
    return "nothing raised"


def digits(values: object) -> str:
    """Return numbers with the digits that every processor agrees on."""
    return np.array2string(np.asarray(values), precision=9, floatmode="fixed")


def linear_algebra() -> str:
    matrix = np.arange(36.0).reshape(6, 6) % 7 + 6 * np.eye(6)
    return digits(
        np.concatenate(
            [
                np.linalg.solve(matrix, np.ones(6)),
                np.sort_complex(np.linalg.eigvals(matrix)).real,
                np.linalg.svd(matrix, compute_uv=False),
                np.linalg.qr(matrix)[1].ravel(),
                [np.linalg.det(matrix)],
            ]
        )
    )


def universal_functions() -> str:
    values = np.linspace(0.1, 9.9, 50)
    functions = (np.sin, np.log1p, np.cbrt, np.float_power, np.hypot)
    results = [f(values) if f.nin == 1 else f(values, 2.0) for f in functions]
    text = np.array(["batch", "größe", "\N{GREEK SMALL LETTER ALPHA}"])
    sorted_ = np.sort(np.array([3, 1, 2], dtype=np.int8))[::-1]
    return "\n".join(
        [*map(digits, results), str(np.strings.upper(text)), str(sorted_), digits(np.einsum("i,i", values, values))]
    )


def random_numbers() -> str:
    generator = np.random.default_rng(7)
    return digits([generator.normal(size=5), generator.gamma(2.0, size=5), np.random.RandomState(3).rand(5)])


def fourier() -> str:
    return digits(np.abs(np.fft.rfft(np.arange(32.0) ** 1.5)))


def polynomials() -> str:
    return digits(np.polynomial.Polynomial.fit(np.arange(9.0), np.arange(9.0) ** 3, 3).convert().coef)


def errors_from_compiled_code() -> str:
    return "\n".join(
        [
            raised(lambda: np.linalg.solve(np.zeros((2, 3)), np.zeros(2))),
            raised(lambda: np.add("a", 1)),
            raised(lambda: np.zeros(-1)),
            raised(lambda: np.frombuffer(b"123", dtype=np.int16)),
            raised(lambda: Path(np.zeros((2, 2)), [1, 2, 3])),
            raised(lambda: ft2font.FT2Font(io.BytesIO(b"no font"))),
            raised(lambda: Image.open(io.BytesIO(b"no image")).load()).split("<")[0],
            raised(lambda: json.loads("{")),
            raised(lambda: re.compile("(")),
        ]
    )


def figure(kind: str, count: int = 1) -> bytes:
    """Draw a figure with some of everything."""
    content = io.BytesIO()
    with rc_context({"svg.hashsalt": "checks", "svg.fonttype": "none"}):
        for turn in range(count):
            drawing = Figure(figsize=(6, 4), layout="constrained")
            left, right = drawing.subplots(1, 2)
            left.plot(np.arange(50), np.arange(50) ** 1.5 + turn, label="line")
            left.fill_between(np.arange(50), np.arange(50), alpha=0.3, label="area")
            left.set_xscale("log", base=2)
            left.legend()
            right.barh(["weights", "gradients"], [2, 1], hatch="//")
            right.annotate("peak", (1, 1), (1.5, 0.5), arrowprops={"arrowstyle": "->"})
            right.contour(np.outer(np.arange(9), np.arange(9)))
            right.set_title("größer \N{GREATER-THAN OR EQUAL TO} 1")
            content = io.BytesIO()
            drawing.savefig(content, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return content.getvalue()


def svg_figure() -> str:
    text = figure("svg").decode()
    return f"{text.count('<text')} texts, sha256 {hashlib.sha256(text.encode()).hexdigest()}"


def png_figure() -> str:
    image = Image.open(io.BytesIO(figure("png")))
    return f"{image.size} sha256 {hashlib.sha256(image.tobytes()).hexdigest()}"


def formula_in_a_label() -> str:
    drawing = Figure()
    drawing.subplots().set_title(r"$\alpha_i \leq \sqrt{x}$")
    content = io.StringIO()
    drawing.savefig(content, format="svg", metadata={"Date": None})
    return str("\N{GREEK SMALL LETTER ALPHA}" in content.getvalue() or "alpha" in content.getvalue())


def standard_library_at_large() -> str:
    import csv  # noqa: PLC0415 - not imported before: it must be found when it is asked for
    import decimal  # noqa: PLC0415
    import fractions  # noqa: PLC0415
    import sqlite3  # noqa: PLC0415
    import statistics  # noqa: PLC0415
    import xml.etree.ElementTree as ET  # noqa: PLC0415

    rows = list(csv.reader(io.StringIO('a,"b,c"\n')))
    numbers = [decimal.Decimal(1) / 3, fractions.Fraction(3, 9), statistics.median([3, 1, 2])]
    found = sqlite3.connect(":memory:").execute("select 6 * 7").fetchone()
    return str([rows, *map(str, numbers), found, ET.fromstring("<a><b/></a>")[0].tag])  # noqa: S314


def every_library() -> str:
    import numpy.fft  # noqa: F401, PLC0415 - none that is there from the start: it brings all of them

    folder = pathlib.Path(np.__file__).parent.parent
    names = sorted(
        ".".join(path.relative_to(folder).with_name(path.name.partition(".")[0]).parts) for path in folder.rglob("*.so")
    )
    return str([(name, raised(partial(importlib.import_module, name))) for name in names])


def modules_that_do_not_exist() -> str:
    return raised(lambda: __import__("no_such_module")).split("\n")[0]


def chance_differs_between_starts() -> str:
    import random  # noqa: PLC0415

    warnings.warn("a warning works", stacklevel=1)
    return str(0 <= random.random() < 1)  # noqa: S311


CHECKS = {
    check.__name__: check
    for check in (
        linear_algebra,
        universal_functions,
        errors_from_compiled_code,
        svg_figure,
        png_figure,
        formula_in_a_label,
        polynomials,
        fourier,
        random_numbers,
        standard_library_at_large,
        every_library,
        modules_that_do_not_exist,
        chance_differs_between_starts,
    )
}


def results() -> str:
    """Run every check; an error is a result as well."""
    answers = {}
    for name, check in CHECKS.items():
        try:
            answers[name] = check()
        except Exception as error:  # noqa: BLE001 - named in the result
            answers[name] = f"FAILED {type(error).__name__}: {error}"
    return json.dumps(answers)
