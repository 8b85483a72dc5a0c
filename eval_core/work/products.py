"""Matrix products of linear layers: which kernels compute them, and in which pieces."""

from __future__ import annotations

import torch

_VOCABULARY_BLOCK = 4096
_FEW_ROWS = 256


def onednn_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weight.T + bias by oneDNN: [..., in], [out, in], [out] or None -> [..., out], all float32.

    PyTorch's own linear layer calls the BLAS that it is built with, which for x86 is Intel's and on other makes of CPU doesn't use
    their widest units: 108 GFLOP/s on one core of an AMD EPYC with AVX512, where oneDNN does 250. The operator is the one that
    PyTorch's compiler calls for a linear layer on a CPU. `weight` has to be contiguous; otherwise oneDNN computes it by its slowest
    kernel. Rows are filled up to a multiple of 32, few ones of 16, because oneDNN compiles a kernel for each number of rows and keeps
    it: 2 ms and half a megabyte each.
    """
    rows = x.shape[:-1].numel()
    missing = -rows % (16 if rows <= _FEW_ROWS else 32)
    if missing:
        x, shape = torch.nn.functional.pad(x.reshape(rows, -1), (0, 0, 0, missing)), x.shape[:-1]
        return onednn_product(x, weight, bias)[:rows].view(*shape, -1)
    found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found


class OneDnnLinear(torch.nn.Module):
    """A linear layer whose products and sums are float32, by `onednn_product`, rounded once to the layer's dtype.

    A layer of 16 bits so gives what a CPU's 16-bit units give too, up to the order of the sums, and without such units (AMX,
    AVX512-BF16) several times as fast; its weights are held in float32. A layer of float32 holds no copy.
    """

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.weight = layer.weight.detach().float()
        self.bias = None if layer.bias is None else layer.bias.detach().float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] -> [..., out], both in the model's dtype."""
        return onednn_product(x.float(), self.weight, self.bias).to(x.dtype)


def use_onednn(module: torch.nn.Module) -> None:
    """Put a `OneDnnLinear` in the place of every linear layer below `module`."""
    for name, child in module.named_children():
        if type(child) is torch.nn.Linear:
            setattr(module, name, OneDnnLinear(child))
        else:
            use_onednn(child)


def vocabulary_logits(hidden: torch.Tensor, layer: torch.nn.Module, room: torch.Tensor | None = None) -> torch.Tensor:
    """[N, hidden] -> [N, vocab], in float32 where oneDNN computes it, and then written over `room` where that is large enough.

    oneDNN takes the vocabulary in blocks, so that there is never a second [N, vocab].
    """
    if not isinstance(layer, OneDnnLinear):
        logits: torch.Tensor = layer(hidden)
        return logits
    weight, bias = layer.weight, layer.bias
    hidden = hidden.float()
    if room is not None and len(room) >= len(hidden):
        logits = room[: len(hidden)]
    else:
        logits = torch.empty(len(hidden), len(weight))
    for start in range(0, len(weight), _VOCABULARY_BLOCK):
        block = slice(start, start + _VOCABULARY_BLOCK)
        logits[:, block] = onednn_product(hidden, weight[block], None if bias is None else bias[block])
    return logits
