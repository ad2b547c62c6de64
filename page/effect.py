"""What a change of the scenario did."""

from typing import Any

from page.format import count, gib, signed


def effect(before: dict[str, Any], after: dict[str, Any]) -> str:
    """What a change did to the batch and to the speed, in a few words; of both results `page.sections.brief`."""
    said = []
    gained = after["max_micro_batch"] - before["max_micro_batch"]
    needed = after["peak_reserved_bytes"] - before["peak_reserved_bytes"]
    if gained:
        said.append(f"{signed(count(gained), gained)} batch")
    elif needed:
        said.append(signed(gib(needed), needed))
    old, new = before["samples_per_second"], after["samples_per_second"]
    # Where nothing fits there is no speed to compare with.
    if old and new and before["max_micro_batch"] and after["max_micro_batch"]:
        percent = round((new / old - 1) * 100)
        if percent:
            said.append(f"{signed(count(percent), percent)} % speed")
    return ", ".join(said)
