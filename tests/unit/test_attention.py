"""Attention in blocks is attention, and takes the place of transformers' own only where it may."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from eval_core.work import attention
from eval_core.work.attention import causal_attention, in_blocks


def heads_of(batch: int, groups: int, shared: int, length: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(length)
    query = torch.randn(batch, length, groups * shared, 16)
    key, value = (torch.randn(batch, length, groups, size) for size in (16, 8))
    return tuple(part.to(dtype).transpose(1, 2) for part in (query, key, value))


def exact(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float) -> torch.Tensor:
    """[B, L, H, E] in float64, by the textbook."""
    shared = query.shape[1] // key.shape[1]
    wide = query.double(), *(part.double().repeat_interleave(shared, dim=1) for part in (key, value))
    scores = scaling * wide[0] @ wide[1].transpose(2, 3)
    length = scores.shape[-1]
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    return (scores.masked_fill(future, -torch.inf).softmax(-1) @ wide[2]).transpose(1, 2)


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([1, 2, 127, 128, 129, 255, 256, 300]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_it_is_attention(batch: int, groups: int, shared: int, length: int, dtype: torch.dtype) -> None:
    heads = heads_of(batch, groups, shared, length, dtype)
    found = causal_attention(*heads, 0.2)
    assert found.dtype == dtype
    expected = exact(*heads, 0.2)
    rounding = torch.finfo(dtype).eps / 2 * expected.abs() + 1e-5
    assert ((found.double() - expected).abs() <= rounding).all()


def test_what_comes_after_a_token_does_not_change_its_bits() -> None:
    heads = heads_of(1, 2, 2, 400, torch.float32)
    whole = causal_attention(*heads, 0.2)
    for length in (256, 300, 399):
        part = causal_attention(*(head[:, :, :length] for head in heads), 0.2)
        full_blocks = length // 128 * 128
        assert torch.equal(part[:, :full_blocks], whole[:, :full_blocks])


class Counted:
    """The two ways to compute, each counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.blocked, self.others = 0, 0
        ours, theirs = attention.causal_attention, ALL_ATTENTION_FUNCTIONS["sdpa"]

        def blocked(*heads: Any) -> Any:
            self.blocked += 1
            return ours(*heads)

        def others(*heads: Any, **kwargs: Any) -> Any:
            self.others += 1
            return theirs(*heads, **kwargs)

        monkeypatch.setattr(attention, "causal_attention", blocked)
        monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", others)


@pytest.mark.parametrize(
    ("length", "asked", "mask", "extra", "blocked"),
    [
        (256, 256, False, {}, True),
        (256, 256, False, {"is_causal": True}, True),
        (255, 255, False, {}, False),
        (256, 1, False, {}, False),
        (256, 256, True, {}, False),
        (256, 256, False, {"is_causal": False}, False),
    ],
)
def test_only_long_causal_rows_without_a_mask_are_taken(
    length: int, asked: int, mask: bool, extra: dict[str, bool], blocked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch)
    query, key, value = heads_of(2, 2, 1, length, torch.float32)
    query = query[:, :, :asked]
    module = SimpleNamespace(num_key_value_groups=1)
    given = (torch.zeros(2, 1, asked, length) if mask else None,)
    theirs, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, *given, scaling=0.25, **extra)
    with in_blocks():
        found, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, *given, scaling=0.25, **extra)
    torch.testing.assert_close(found, theirs)
    assert (counted.blocked, counted.others) == ((1, 1) if blocked else (0, 2))
    ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, *given, scaling=0.25, **extra)
    assert counted.others == (2 if blocked else 3)
