"""Text and numbers for a reader's eyes: nothing here knows of HTML, and nothing breaks on odd characters."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

SHOWN_CHARACTERS = 600

_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: 0x2421}
_REPLACEMENT = "\ufffd"
_UNSAFE = re.compile("[\ud800-\udfff\u202d\u202e]")
"""Lone surrogates, which UTF-8 can't carry, and the two marks that turn the direction of all that follows."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_NO_NUMBER = "\N{EN DASH}"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def visible(text: str) -> str:
    """`text` with every character printable and encodable: control characters as pictures, `_UNSAFE` as U+FFFD."""
    return _UNSAFE.sub(_REPLACEMENT, text).translate(_PICTURES)


def cut(text: str, limit: int = SHOWN_CHARACTERS) -> str:
    """The two ends of `text`, about `limit` characters in all, and what stands between them left out."""
    if len(text) <= limit:
        return text
    end = limit // 3
    left_out = len(text) - limit
    return f"{text[: limit - end]} […{left_out:,} characters…] {text[-end:]}"


def number(value: float) -> str:
    """Four decimals, or five significant digits where those would hide the value or drown it."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.4e}"
    return f"{value:.4f}"


def stderr(value: float) -> str:
    """As `number`; a dash where there is none."""
    return _NO_NUMBER if math.isnan(value) else number(value)


def relative(value: float) -> str:
    """A relative error, with its sign: `+1.23e-06`."""
    return f"{value:+.2e}" if math.isfinite(value) else number(value)


def count(value: int) -> str:
    """`12,345`."""
    return f"{value:,}"


def percent(value: float) -> str:
    """`97.5 %`."""
    return f"{100 * value:.1f} %" if math.isfinite(value) else _NO_NUMBER


def utc(seconds: float) -> str:
    """A Unix time as `2026-11-30 08:47:01 UTC`; a dash where it is none."""
    try:
        return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError):
        return _NO_NUMBER


def duration(seconds: float) -> str:
    """`850 ms`, `12.3 s`, `4 min 05 s`, `2 h 03 min`."""
    if not math.isfinite(seconds) or seconds < 0:
        return _NO_NUMBER
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def plural(n: int, one: str, many: str = "") -> str:
    """`1 shard`, `2 shards`."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def json_float(value: float) -> float | str:
    """`value` as JSON can carry it: NaN and infinities become the words that JavaScript and Python read."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def plain(value: Any) -> Any:
    """JSON-able `value` with `json_float` for every float in it."""
    if isinstance(value, float):
        return json_float(value)
    if isinstance(value, Mapping):
        return {str(name): plain(v) for name, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def encode_json(value: Any, indent: int | None = None) -> bytes:
    """Valid JSON in valid UTF-8; characters that UTF-8 can't carry (lone surrogates) are escaped."""
    try:
        if indent is None:
            return _ENCODER.encode(plain(value)).encode()
        return json.dumps(plain(value), indent=indent, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return json.dumps(plain(value), indent=indent, allow_nan=False).encode()
