"""Linear layers by oneDNN, and the head in blocks, are the layers that they stand for."""

from __future__ import annotations

import pytest
import torch

from eval_core.work.products import OneDnnLinear, use_onednn, vocabulary_logits


def layer(inputs: int, outputs: int, *, bias: bool, dtype: torch.dtype) -> torch.nn.Linear:
    torch.manual_seed(outputs)
    return torch.nn.Linear(inputs, outputs, bias=bias).to(dtype)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_rounded_once(bias: bool, dtype: torch.dtype) -> None:
    narrow = layer(300, 40, bias=bias, dtype=dtype)
    x = torch.randn(7, 300).to(dtype)
    exact = narrow.double()(x.double())
    found = OneDnnLinear(layer(300, 40, bias=bias, dtype=dtype))(x)
    assert found.dtype == dtype
    rounding = torch.finfo(dtype).eps / 2 * exact.abs() + 1e-5
    assert ((found.double() - exact).abs() <= rounding).all()


def test_every_linear_layer_is_replaced_and_nothing_else() -> None:
    model = torch.nn.Sequential(
        torch.nn.Embedding(5, 8), torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.SiLU()), torch.nn.LayerNorm(8)
    ).to(torch.bfloat16)
    use_onednn(model)
    kinds = [type(m).__name__ for m in model.modules() if not list(m.children())]
    assert kinds == ["Embedding", "OneDnnLinear", "SiLU", "LayerNorm"]


@pytest.mark.parametrize("vocabulary", [1, 2047, 2048, 2049, 5000])
@pytest.mark.parametrize("bias", [False, True])
def test_the_head_in_blocks(vocabulary: int, bias: bool) -> None:
    head = layer(64, vocabulary, bias=bias, dtype=torch.float32)
    hidden, room = torch.randn(5, 64), torch.empty(6, vocabulary)
    with torch.inference_mode():
        found = vocabulary_logits(hidden, OneDnnLinear(head), room)
        torch.testing.assert_close(found, head(hidden), rtol=1e-5, atol=1e-5)
        assert found.data_ptr() == room.data_ptr()
        assert torch.equal(vocabulary_logits(hidden, OneDnnLinear(head), room[:4]), found)


def test_a_layer_of_float32_holds_no_copy() -> None:
    narrow = layer(30, 40, bias=True, dtype=torch.float32)
    assert OneDnnLinear(narrow).weight.data_ptr() == narrow.weight.data_ptr()


def test_the_head_of_sixteen_bits_is_not_rounded() -> None:
    head = OneDnnLinear(layer(64, 3000, bias=False, dtype=torch.bfloat16))
    hidden = torch.randn(5, 64).bfloat16()
    logits = vocabulary_logits(hidden, head)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, hidden.float() @ head.weight.t(), rtol=1e-5, atol=1e-5)


def test_a_head_that_is_no_linear_layer_computes_itself() -> None:
    assert vocabulary_logits(torch.ones(2, 3), torch.nn.Softplus()).shape == (2, 3)


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 255, 256, 257, 321])
@pytest.mark.parametrize("bias", [False, True])
def test_rows_that_are_filled_up_are_taken_off_again(rows: int, bias: bool) -> None:
    plain = layer(30, 40, bias=bias, dtype=torch.float32)
    x = torch.randn(3, rows, 30)
    with torch.inference_mode():
        torch.testing.assert_close(OneDnnLinear(plain)(x), plain(x), rtol=1e-5, atol=1e-5)
