"""The command line: ``python -m calc evaluate`` and ``plan``, and the catalogs.

Exit status: 0; 1 where a scenario was refused, or where nobody reads the answers any more; 2 where the input is no
JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

from calc.catalog.listing import gpus_text, models_text
from calc.errors import ScenarioError
from calc.evaluation import evaluate
from calc.summary import as_text, plan_as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

REFUSED = 1
UNREAD = 1
NO_JSON = 2


def plan(scenario: Any) -> dict[str, Any]:
    """The planner's answer."""
    try:
        from calc import planner  # noqa: PLC0415 - the rest of the command line does without numpy
    except ImportError:
        raise ScenarioError("plan", "the planner needs numpy, which is not installed") from None
    return planner.plan(scenario)


WORK_OUT = {"evaluate": evaluate, "plan": plan}
AS_TEXT = {"evaluate": as_text, "plan": plan_as_text}


def error_of(error: ScenarioError) -> dict[str, Any]:
    """What is answered in place of a result."""
    return {"error": {"field": error.field, "message": error.message}}


def answer(scenario: Any, work_out: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """The result of one scenario, or its error."""
    try:
        return work_out(scenario)
    except ScenarioError as error:
        return error_of(error)


def read_json(text: str) -> Any:
    """The value that a JSON text holds.

    Raises
    ------
    ScenarioError
        If it is no JSON, or JSON that Python does not read: numbers of thousands of digits, thousands of levels.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ScenarioError("scenario", f"no JSON: {error}") from None
    except ValueError:
        allowed = f"allowed are {sys.get_int_max_str_digits():,}"
        raise ScenarioError("scenario", f"a number has too many digits to be read: {allowed}") from None
    except RecursionError:
        raise ScenarioError("scenario", "lists and objects lie too deep in one another to be read") from None


def answer_lines(command: str, lines: Iterable[str], out: TextIO) -> int:
    """Answers one scenario a line, in order; the exit status."""
    status = 0
    for line in lines:
        if not line.strip():
            continue
        try:
            scenario = read_json(line)
        except ScenarioError as error:
            result = error_of(error)
            status = NO_JSON
        else:
            result = answer(scenario, WORK_OUT[command])
            if "error" in result:
                status = max(status, REFUSED)
        print(json.dumps(result, allow_nan=False), file=out)
    return status


def answer_options(command: str, options: Sequence[str], out: TextIO) -> int:
    """Answers ``--key value`` pairs in readable text; values are JSON where they parse as such, else words."""
    scenario: dict[str, Any] = {}
    if len(options) % 2 or not all(name.startswith("--") for name in options[::2]):
        print("give pairs such as --model gpt2 --gpu rtx-4090-24gb", file=sys.stderr)
        return NO_JSON
    for name, text in zip(options[::2], options[1::2], strict=True):
        try:
            value = read_json(text)
        except ScenarioError:
            value = text
        scenario[name[2:].replace("-", "_")] = value
    result = answer(scenario, WORK_OUT[command])
    if "error" in result:
        print(f"{result['error']['field']}: {result['error']['message']}", file=sys.stderr)
        return REFUSED
    print(AS_TEXT[command](result), file=out)
    return 0


def main(arguments: Sequence[str]) -> int:
    """Runs one command."""
    parser = argparse.ArgumentParser(prog="python -m calc", description="How large a batch a GPU can take.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("evaluate", help="scenarios from standard input, one JSON object a line; or --key value pairs")
    commands.add_parser(
        "plan", help="the fastest, cheapest or roomiest way to a batch, a deadline or a budget; as evaluate"
    )
    for name in ("models", "gpus"):
        listing = commands.add_parser(name, help=f"list the {name}")
        listing.add_argument("words", nargs="*", help="show only those that match")
    if arguments and arguments[0] in WORK_OUT:
        command, *options = arguments
        if not options or options == ["-h"]:
            parser.parse_args(arguments)
        return answer_options(command, options, sys.stdout) if options else answer_lines(command, sys.stdin, sys.stdout)
    parsed = parser.parse_args(arguments)
    lister = models_text if parsed.command == "models" else gpus_text
    print(lister(" ".join(parsed.words)))
    return 0


def main_in_a_pipe(arguments: Sequence[str]) -> int:
    """`main`, which ends quietly where the program that reads its answers has ended, as ``head`` does."""
    try:
        status = main(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes standard output once more as it ends, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    return status


if __name__ == "__main__":
    sys.exit(main_in_a_pipe(sys.argv[1:]))
