"""What a row is measured on."""

import platform
import subprocess
from typing import Any

import torch


def describe(device: torch.device) -> dict[str, Any]:
    """Names and versions, which are those of every row in a file."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "device": device.type}
    try:
        import triton

        found["triton"] = triton.__version__
    except ImportError:
        found["triton"] = "none"
    if device.type == "cuda":
        found |= {"device": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}
    return found


def state(device: torch.device) -> dict[str, Any]:
    """What changes from moment to moment: clocks, temperature and power of a GPU, and its memory."""
    if device.type != "cuda":
        return {"threads": torch.get_num_threads()}
    properties = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info()
    fields = "clocks.sm,clocks.mem,temperature.gpu,power.draw,driver_version"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    values = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().split(", ")
    return {
        **dict(zip(fields.split(","), values, strict=True)),
        "processors": properties.multi_processor_count,
        "L2 MB": properties.L2_cache_size / 1e6,
        "free GB": free / 1e9,
        "total GB": total / 1e9,
    }
