"""A column of texts in a Parquet file: a million of them without a million objects."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any, overload

import pyarrow as pa
import pyarrow.parquet as pq

from eval_core.errors import CorruptFileError

_BLOCK = 1 << 12
"""Texts of a row group: what one look-up decodes."""


class Texts(Sequence[str]):
    """The texts in `data`, decoded a block at a time as they are asked for; `where` stands in messages.

    Raises:
        CorruptFileError: the file is damaged; then or when the texts are read.
    """

    def __init__(self, data: bytes, where: str) -> None:
        self._where = where
        try:
            self._file = pq.ParquetFile(io.BytesIO(data), pre_buffer=False)
            groups = self._file.metadata
            self._sizes = [groups.row_group(i).num_rows for i in range(groups.num_row_groups)]
        except Exception as error:  # what Arrow raises on a damaged file is of many kinds
            raise self._damaged(error) from error
        self._start, self._block = 0, list[str]()

    def __len__(self) -> int:
        return sum(self._sizes)

    def __iter__(self) -> Iterator[str]:
        for group in range(len(self._sizes)):
            yield from self._read(group)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = index - self._start
        if not 0 <= place < len(self._block):
            place = self._seek(index if index >= 0 else index + len(self))
        return self._block[place]

    def _seek(self, index: int) -> int:
        """Read the block of `index`, and give its place there."""
        start = 0
        for group, size in enumerate(self._sizes):
            if 0 <= index - start < size:
                self._start, self._block = start, self._read(group)
                return index - start
            start += size
        raise IndexError(index)

    def _read(self, group: int) -> list[str]:
        try:
            texts: list[str] = self._file.read_row_group(group, use_threads=False)["value"].to_pylist()
        except Exception as error:
            raise self._damaged(error) from error
        return texts

    def _damaged(self, error: Exception) -> CorruptFileError:
        return CorruptFileError(f"{self._where}: damaged ({error}); restore it, or start a new run")


def write_texts(texts: Sequence[str]) -> bytes:
    """The Parquet file that `Texts` reads."""
    kind = pa.large_string()
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, pa.schema([("value", kind)]), compression="zstd") as writer:
        for start in range(0, len(texts), _BLOCK):
            block: Any = pa.array(texts[start : start + _BLOCK], type=kind)
            writer.write_table(pa.table({"value": block}))
    return sink.getvalue()
