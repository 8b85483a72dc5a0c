"""Examples from JSONL files, each with the line it stands on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from eval_core.errors import DataError


@dataclass(frozen=True, slots=True)
class Document:
    """One line of a JSONL file.

    Attributes:
        where: `file:line`, for messages.
        fields: the object on that line.
    """

    where: str
    fields: dict[str, Any]

    def field(self, name: str, kind: type) -> Any:
        """The value of `name`.

        Raises:
            DataError: it is missing or no `kind`.
        """
        if name not in self.fields:
            raise DataError(f"{self.where}: no field '{name}' (it has: {', '.join(self.fields)})")
        value = self.fields[name]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise DataError(f"{self.where}: field '{name}' must be {kind.__name__}, not {type(value).__name__}")
        return value


def read_documents(path: Path, limit: int | None) -> list[Document]:
    """The documents of `stream_documents`, all at once."""
    return list(stream_documents(path, limit))


def stream_documents(path: Path, limit: int | None) -> Iterator[Document]:
    """The first `limit` (None: all) documents of a JSONL file, read as they are asked for; blank lines don't count.

    Raises:
        DataError: the file is missing, unreadable or empty, or a line is no JSON object.
    """
    empty = True
    try:
        with path.open(encoding="utf-8") as stream:
            for document in islice(_parse(path, stream), limit):
                empty = False
                yield document
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: can't be read: {getattr(error, 'strerror', None) or error}") from error
    if empty:
        raise DataError(f"{path}: no examples in this file")


def _parse(path: Path, lines: Iterator[str]) -> Iterator[Document]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            fields = json.loads(line, parse_constant=_refuse, parse_float=_finite)
            if "\\ud" in line.lower():
                json.dumps(fields, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{where}: half a surrogate pair stands alone, which is no character; mend the text"
            ) from error
        except ValueError as error:
            raise DataError(f"{where}: not valid JSON: {error}") from error
        if not isinstance(fields, dict):
            raise DataError(f"{where}: a line must be a JSON object, this is a {type(fields).__name__}")
        yield Document(where, fields)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is beyond what a number can hold")
    return value
