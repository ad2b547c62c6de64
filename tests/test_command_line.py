"""``python -m calc``: what it prints, in which order, its exit status, and that it needs the standard library alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from calc.evaluation import evaluate
from calc.summary import gib

ROOT = Path(__file__).resolve().parent.parent
GPT2 = {"model": "gpt2", "sequence_length": 128, "gpu": {"memory_gib": 8}}

# -I and -S leave out the working directory, the environment and site-packages; the finder refuses what is not ours.
ALONE = f"""
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top != "calc":
            raise ImportError(f"{{name}} is not in the standard library")

sys.meta_path.insert(0, Refuse())
sys.path.insert(0, {str(ROOT)!r})
from calc.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def run(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "calc", *arguments],
        input=text,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )


def lines(*scenarios: object) -> str:
    return "".join(json.dumps(scenario) + "\n" for scenario in scenarios)


def test_one_result_a_line_in_order() -> None:
    asked = [{**GPT2, "micro_batch": size} for size in (3, 1, 2)]
    done = run("evaluate", text=lines(*asked))
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert [result["micro_batch"] for result in results] == [3, 1, 2]
    assert results == [json.loads(json.dumps(evaluate(scenario))) for scenario in asked]


def test_a_refused_scenario_is_answered_in_its_place_with_status_1() -> None:
    done = run("evaluate", text=lines(GPT2, {**GPT2, "sequence_length": -1}, GPT2))
    first, refused, last = (json.loads(line) for line in done.stdout.splitlines())
    assert done.returncode == 1
    assert refused["error"]["field"] == "sequence_length"
    assert "from 1 to" in refused["error"]["message"]
    assert first["max_micro_batch"] == last["max_micro_batch"] > 0
    assert done.stderr == ""


@pytest.mark.parametrize("text", ["{not json", '{"model": "gpt2"', "gpt2"])
def test_input_that_is_no_json_has_status_2(text: str) -> None:
    done = run("evaluate", text=lines(GPT2) + text + "\n" + lines(GPT2))
    assert done.returncode == 2
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == 3
    assert "no JSON" in answers[1]["error"]["message"]
    assert "error" not in answers[2]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"model": "gpt2", "tokens": ' + "9" * 5000 + "}", "too many digits"),
        ("[" * 100_000, "too deep"),
    ],
)
def test_json_that_python_does_not_read_is_refused_in_its_place(text: str, why: str) -> None:
    done = run("evaluate", text=text + "\n" + lines(GPT2))
    refused, answered = map(json.loads, done.stdout.splitlines())
    assert (done.returncode, done.stderr) == (2, "")
    assert why in refused["error"]["message"]
    assert "error" not in answered


def test_an_option_that_python_does_not_read_names_its_field() -> None:
    done = run("evaluate", "--model", "gpt2", "--tokens", "9" * 5000)
    assert done.returncode == 1
    assert done.stderr.startswith("tokens: ")


@pytest.mark.parametrize("arguments", [["models"], ["evaluate"]])
def test_it_ends_quietly_where_nobody_reads_on(arguments: list[str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "calc", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    ) as started:
        assert started.stdout is not None
        started.stdout.close()
        _, complaints = started.communicate(lines(GPT2, GPT2).encode(), timeout=120)
    assert (started.returncode, complaints) == (1, b"")


@pytest.mark.parametrize("scenario", [None, 3, "gpt2", [], [GPT2], {}])
def test_json_that_is_no_scenario_is_refused(scenario: object) -> None:
    done = run("evaluate", text=lines(scenario))
    assert done.returncode == 1
    assert set(json.loads(done.stdout)["error"]) == {"field", "message"}


def test_empty_lines_are_passed_over() -> None:
    done = run("evaluate", text="\n\n" + lines(GPT2) + "\n")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1


def test_no_input_is_no_result() -> None:
    done = run("evaluate")
    assert (done.returncode, done.stdout) == (0, "")


def test_options_give_readable_text() -> None:
    done = run("evaluate", "--model", "gpt2", "--gpu", "rtx-4090-24gb", "--sequence-length", "256")
    assert done.returncode == 0
    assert "Micro-batch" in done.stdout
    assert "GiB" in done.stdout
    assert "Weights" in done.stdout


@pytest.mark.parametrize(("options", "samples"), [([], "one sample"), (["--micro-batch", "1600"], "1,600 samples")])
def test_what_does_not_fit_is_of_the_micro_batch_that_was_asked_for(options: list[str], samples: str) -> None:
    done = run("evaluate", "--model", "gpt2-xl", "--gpu", '{"memory_gib": 8}', *options)
    needed = evaluate({"model": "gpt2-xl", "gpu": {"memory_gib": 8}, "micro_batch": int(options[-1]) if options else 1})
    assert f"needs {gib(needed['memory']['peak_allocated_bytes'])} for {samples};" in done.stdout


def test_a_wrong_option_names_its_field() -> None:
    done = run("evaluate", "--model", "gpt2", "--precision", "fp12")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("precision:")
    assert "amp-bf16" in done.stderr


@pytest.mark.parametrize("options", [["--model"], ["gpt2"], ["--model", "gpt2", "--gpu"]])
def test_options_that_are_no_pairs_have_status_2(options: list[str]) -> None:
    done = run("evaluate", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("listing", "word"), [("models", "gpt2"), ("gpus", "rtx-4090-24gb")])
def test_catalogs(listing: str, word: str) -> None:
    done = run(listing)
    assert done.returncode == 0
    assert word in done.stdout
    assert run(listing, "no-such-thing-at-all").returncode == 0


@pytest.mark.parametrize("arguments", [[], ["no-such-command"]])
def test_an_unknown_command_has_status_2(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "usage" in done.stderr


def test_it_needs_the_standard_library_alone() -> None:
    scenarios = [
        {"model": "gpt2"},
        {"model": "resnet50", "gpu": "t4-16gb", "gpus": 4, "global_batch": 1024},
        {"model": "llama-3.1-8b", "method": "qlora", "gpu": "rtx-4090-24gb"},
    ]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", ALONE, "evaluate"],
        input=lines(*scenarios),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == len(scenarios)


def test_a_plan_in_words_with_the_scenario_that_runs_it() -> None:
    options = "--model gpt2 --gpus 4 --tokens 1e9 --deadline-hours 5".split()
    done = run("plan", *options)
    assert done.returncode == 0
    text, *_, scenario = done.stdout.splitlines()
    assert "The cheapest plan that meets the deadline: " in text
    assert evaluate(json.loads(scenario))["fits"]
    assert "meets the deadline of 5 h" in run("evaluate", *options).stdout
    refused = run("plan", "--model", "gpt2", "--deadline-hours", "5")
    assert refused.returncode == 1
    assert refused.stderr.startswith("tokens: ")
    assert done.stderr == ""


def test_without_numpy_only_the_planner_is_missing() -> None:
    asked = json.dumps({**GPT2, "global_batch": 8})
    alone = [sys.executable, "-I", "-S", "-c", ALONE, "plan"]
    done = subprocess.run(alone, input=asked, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "numpy" in json.loads(done.stdout)["error"]["message"]
