"""`concord tune` times real processes and prints lines that a spec takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml

from eval_core.spec_yaml import load_spec


def test_tune(concord: Callable, tiny_spec: Callable, tmp_path: Path) -> None:
    spec = tiny_spec(dtype="bfloat16")
    done = concord("tune", spec)
    assert done.returncode == 0, done.stderr
    assert "compute.cpu_products: native" in done.stdout
    assert "of the spec's" in done.stdout
    assert "as the spec says: " in done.stderr
    if "Nothing is worth a change" in done.stdout:
        return
    printed = yaml.safe_load(done.stdout.partition("--nproc")[2].partition("\n")[2])
    text = yaml.safe_load(spec.read_text())
    for section, keys in printed.items():
        text[section] = {**text.get(section, {}), **keys}
    changed = tmp_path / "changed.yaml"
    changed.write_text(yaml.safe_dump(text))
    load_spec(changed)
