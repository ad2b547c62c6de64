"""Many GPUs: bytes per GPU and seconds per step under data, sharded, tensor, pipeline, context and expert parallelism.

Everything takes one GPU's numbers (bytes of each component, seconds of each pass) and divides or adds to them.
"""

from calc.scaling.layout import Layout, Offload, Strategy, read_layout
from calc.scaling.memory import ModelShape
from calc.scaling.offload import host_bytes_per_second
from calc.scaling.report import scale
from calc.scaling.step_time import StepParts, Workload, host_optimizer_seconds, speed_up, step_parts

__all__ = [
    "Layout",
    "ModelShape",
    "Offload",
    "StepParts",
    "Strategy",
    "Workload",
    "host_bytes_per_second",
    "host_optimizer_seconds",
    "read_layout",
    "scale",
    "speed_up",
    "step_parts",
]
