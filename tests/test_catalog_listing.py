"""The command line's lists name every entry once, in aligned lines."""

from __future__ import annotations

from calc.catalog.gpus import gpus, instances
from calc.catalog.listing import NOTHING_FOUND, gpus_text, models_text
from calc.catalog.models import presets


def _first_words(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines() if line.startswith("  ")]


def test_every_model_is_listed_once() -> None:
    assert sorted(_first_words(models_text())) == sorted(entry.id for entry in presets())


def test_every_gpu_and_instance_is_listed_once() -> None:
    ids = [card.id for card in gpus()] + [machine.id for machine in instances()]
    assert sorted(_first_words(gpus_text())) == sorted(ids)


def test_words_narrow_the_lists() -> None:
    assert _first_words(models_text("gpt2-xl")) == ["gpt2-xl"]
    assert _first_words(gpus_text("rtx 4090 d"))[0] == "rtx-4090-d-24gb"
    assert "p4d.24xlarge" in gpus_text("a100 sxm 40")


def test_a_machines_name_lists_the_machine_with_its_gpu() -> None:
    assert _first_words(gpus_text("colab t4")) == ["t4-16gb", "colab-t4"]


def test_nothing_found_is_said() -> None:
    assert models_text("no such thing") == NOTHING_FOUND
    assert gpus_text("no such thing") == NOTHING_FOUND


def test_a_line_shows_what_it_is_about() -> None:
    assert "1,557,611,200 parameters" in models_text("gpt2-xl")
    assert "23.52 GiB for torch" in gpus_text("rtx-4090-24gb")
