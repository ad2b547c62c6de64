"""The scenario that the page shows first."""

SCENARIO = {"model": "gpt2", "gpu": "rtx-4090-24gb"}
