"""Digests that depend on values alone, never on a file format, a library version or byte order."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_BLOCK = 1 << 12


def canonical_json(value: Any) -> bytes:
    """Encode JSON-able `value` with sorted keys and no spaces.

    Raises:
        ValueError: `value` holds NaN or an infinity, which JSON can't carry.
    """
    return canonical_text(value).encode("utf-8", "surrogatepass")


def canonical_text(value: Any) -> str:
    """`canonical_json` as a str, which may hold lone surrogates."""
    return _ENCODER.encode(value)


def digest_bytes(data: bytes) -> str:
    """SHA-256 of `data`, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest_json(value: Any) -> str:
    """SHA-256 of `value` in canonical JSON."""
    return digest_bytes(canonical_json(value))


def little_endian(array: npt.NDArray[Any]) -> bytes:
    """The bytes of `array` in C order and little-endian."""
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()


def digest_array(array: npt.NDArray[Any]) -> str:
    """SHA-256 over the dtype, the shape and the little-endian bytes of `array`."""
    head = f"{array.dtype.kind}{array.dtype.itemsize}{list(array.shape)}".encode()
    return hashlib.sha256(head + b"\0" + little_endian(array)).hexdigest()


def digest_strings(strings: Iterable[str]) -> str:
    """SHA-256 over `strings`, each preceded by its length in UTF-8 bytes (so no two lists collide)."""
    state = hashlib.sha256()
    rest = iter(strings)
    while encoded := [text.encode("utf-8", "surrogatepass") for text in islice(rest, _BLOCK)]:
        sizes = np.fromiter(map(len, encoded), dtype="<u8").view("V8").tolist()
        state.update(b"".join(chain.from_iterable(zip(sizes, encoded, strict=True))))
    return state.hexdigest()


def digest_columns(columns: Mapping[str, npt.NDArray[Any] | Sequence[str]]) -> dict[str, str]:
    """One digest for each named column."""
    return {
        name: digest_array(column) if isinstance(column, np.ndarray) else digest_strings(column)
        for name, column in columns.items()
    }
