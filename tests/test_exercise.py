"""Work for the browser's sake ends, and each turn of it is short."""

from __future__ import annotations

import json
from time import process_time

from calc import worker

LONGEST_SECONDS = 0.5


def test_turns_count_down_to_the_last() -> None:
    left, turn = 1, 0
    said = []
    while left:
        begin = process_time()
        left = json.loads(worker.exercise(turn))["left"]
        assert process_time() - begin < LONGEST_SECONDS
        said.append(left)
        turn += 1
    assert said == list(reversed(range(turn)))
    assert turn >= 4
