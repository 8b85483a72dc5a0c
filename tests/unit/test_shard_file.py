"""A committed shard as bytes: what is written comes back, and no altered byte goes unseen."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval_core.canonical import canonical_json, digest_json
from eval_core.errors import CorruptFileError
from eval_core.exact import ExactSum
from eval_core.metrics.states import ChoiceState, PerplexityState
from eval_core.shard_file import (
    Provenance,
    ShardResult,
    decode_shard,
    encode_shard,
    shard_key,
    shard_of_key,
)


def make_result(nll: Any = (0.5, 1e-40, np.nan, np.inf, -0.0), dtype: type = np.float32, **changes: Any) -> ShardResult:
    states = {"docs": PerplexityState(nll=ExactSum.of([0.1, 1e300]), tokens=5), "quiz": ChoiceState(examples=1)}
    values = {"plan": "d1", "shard": "main/000001", "states": states} | changes
    return ShardResult(nll=np.array(nll, dtype=dtype), **values)


PROVENANCE = Provenance(
    attempt="a1",
    rank=3,
    world_size=8,
    host="höst",
    node=1,
    device="cuda:1",
    started=1700000000.25,
    finished=1.5e16,
    tokens=640,
)
WHOLE, DIGEST = encode_shard(make_result(), PROVENANCE)


def same(one: ShardResult, other: ShardResult) -> bool:
    """Equal to the bit, NaN and signs of zero included."""
    return one.to_json() == other.to_json() and one.nll.tobytes() == other.nll.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("nll", [(), (1.25,), (0.1, -0.0, np.nan, np.inf, -np.inf, 1e-42)])
def test_a_shard_comes_back_as_it_was(nll: tuple[float, ...], dtype: type) -> None:
    result = make_result(nll, dtype)
    data, digest = encode_shard(result, PROVENANCE)
    file = decode_shard(data, "k")
    assert same(file.result, result)
    assert file.result.nll.dtype == dtype
    assert file.result.states == result.states
    assert (file.digest, file.provenance) == (digest, PROVENANCE)


def test_bytes_are_little_endian_whatever_the_array_is() -> None:
    native, swapped = make_result((1.0, 2.5)), make_result((1.0, 2.5), ">f4")
    assert encode_shard(swapped, PROVENANCE)[1] == encode_shard(native, PROVENANCE)[1]


def test_the_digest_does_not_cover_who_computed_it(provenance: Callable[..., Provenance]) -> None:
    assert encode_shard(make_result(), provenance(host="b", rank=7))[1] == DIGEST


@pytest.mark.parametrize(
    "change",
    [
        {"plan": "d2"},
        {"shard": "main/000002"},
        {"states": {}},
        {"nll": (0.5, 1e-40, np.nan, np.inf, 0.0)},
        {"dtype": np.float64},
    ],
)
def test_the_digest_covers_every_bit_of_the_result(change: dict[str, Any]) -> None:
    assert encode_shard(make_result(**change), PROVENANCE)[1] != DIGEST


def detected_or_equal(data: bytes) -> bool:
    try:
        file = decode_shard(data, "k")
    except CorruptFileError:
        return True
    return same(file.result, make_result()) and file.provenance == PROVENANCE and file.digest == DIGEST


@settings(max_examples=200)
@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_a_flipped_byte_is_detected_or_harmless(at: int, mask: int) -> None:
    data = bytearray(WHOLE)
    data[at] ^= mask
    assert detected_or_equal(bytes(data))


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_at_any_place_is_detected_or_harmless(bit: int) -> None:
    assert all(
        detected_or_equal(WHOLE[:at] + bytes([WHOLE[at] ^ (1 << bit)]) + WHOLE[at + 1 :]) for at in range(len(WHOLE))
    )


def test_a_file_cut_anywhere_is_detected() -> None:
    for length in range(len(WHOLE)):
        with pytest.raises(CorruptFileError):
            decode_shard(WHOLE[:length], "k")


@given(st.binary(max_size=40) | st.sampled_from([b"null", b"[]", b"5", b'"a"', b"{}", b'{"format": 1}']))
def test_anything_else_is_no_shard(data: bytes) -> None:
    with pytest.raises(CorruptFileError, match=r"^k: "):
        decode_shard(data, "k")


def test_another_format_is_said() -> None:
    data = canonical_json(json.loads(WHOLE) | {"format": 9})
    with pytest.raises(CorruptFileError, match="k: format 9, this version reads 2"):
        decode_shard(data, "k")


@pytest.mark.parametrize("part", ["result", "provenance"])
@pytest.mark.parametrize("content", [[], {}, "text", {"plan": 5}, None])
def test_content_of_another_shape_is_no_shard_though_its_digest_fits(part: str, content: Any) -> None:
    data = json.loads(WHOLE) | {part: content, f"{part}_digest": digest_json(content)}
    with pytest.raises(CorruptFileError):
        decode_shard(canonical_json(data), "k")


@pytest.mark.parametrize(
    "change", [{"states": []}, {"states": {"a": {"kind": "new"}}}, {"nll": "AAA"}, {"nll": "AAAA"}]
)
def test_a_result_of_another_shape_is_no_shard_though_its_digest_fits(change: dict[str, Any]) -> None:
    content = json.loads(WHOLE)["result"] | change
    data = json.loads(WHOLE) | {"result": content, "result_digest": digest_json(content)}
    with pytest.raises(CorruptFileError):
        decode_shard(canonical_json(data), "k")


def test_a_key_and_back() -> None:
    assert shard_key("replay/000012") == "shards/replay/000012.json"
    assert shard_of_key(shard_key("replay/000012")) == "replay/000012"


def test_the_worker_is_attempt_and_rank() -> None:
    assert PROVENANCE.worker == "a1:3"
