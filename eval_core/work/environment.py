"""What a rank runs on: recorded with every attempt, because it can move the last bits of a forward pass."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from eval_core import __version__

_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pyarrow", "obstore")
_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "MKL_CBWR",
    "KMP_AFFINITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "NCCL_ALGO",
)


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Hardware, software and the variables that choose kernels."""
    described: dict[str, Any] = {
        "concord": __version__,
        "python": platform.python_version(),
        "os": platform.platform(),
        "cpu": _cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkl": bool(torch._C.has_mkl),
        "threads": torch.get_num_threads(),
        "packages": {name: metadata.version(name) for name in _PACKAGES},
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }
    if device.type == "cuda":
        described["gpu"] = torch.cuda.get_device_name(device)
        described["cuda"] = torch.version.cuda
        described["gpu_driver"] = _gpu_driver()
    return described


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _gpu_driver() -> str:
    try:
        return Path("/sys/module/nvidia/version").read_text(encoding="utf-8").strip()
    except OSError:
        return "unknown"
