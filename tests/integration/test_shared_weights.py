"""Weights in the dtype of their file are read where the file is mapped: no copy, and one for all processes of a machine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

FIELDS = ("Size", "Rss", "Anonymous")
SCRIPT = """
import sys
from pathlib import Path
import torch
from eval_core.spec import Compute
from eval_core.work.model import load_model, set_up_compute
device = set_up_compute(Compute(), 0)
model = load_model(Path(sys.argv[1]), Compute(), sys.argv[2], device, allow_pickle=False)
model.body(torch.arange(64)[None], None)
print(Path("/proc/self/smaps").read_text())
"""


def mapped_pages(model: Path, dtype: str) -> tuple[int, int, int]:
    """KiB of the weights' file that a process has mapped, has in memory, and has as pages of its own."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, model, dtype], capture_output=True, text=True, check=True)
    maps = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", done.stdout, flags=re.MULTILINE)
    weights = "".join(part for part in maps if "model.safetensors\n" in part)
    found = {name: re.findall(rf"^{name}: +([0-9]+) kB", weights, re.MULTILINE) for name in FIELDS}
    size, resident, own = (sum(map(int, found[name])) for name in FIELDS)
    return size, resident, own


def test_weights_are_not_copied_where_the_dtype_is_the_files(tiny_model: Path) -> None:
    size, resident, own = mapped_pages(tiny_model, "float32")
    assert size * 1024 >= (tiny_model / "model.safetensors").stat().st_size * 0.9
    assert resident >= size * 0.9
    assert own == 0


def test_in_another_dtype_they_are(tiny_model: Path) -> None:
    assert mapped_pages(tiny_model, "float64") == (0, 0, 0)
