"""Keys and values of the texts that are being written: one array for each layer, written in place.

All texts end in the same column, so a step writes one column whatever their lengths. A text that has ended leaves its row,
and the next prompt takes one. What only ended texts stood in is given up when the columns run out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

_SPARE = 8
"""There are columns for the longest text and this part of them more, so that texts are seldom moved."""

Beginning = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of the first tokens of a text, layer by layer: [1, heads, tokens, size] each."""


@dataclass
class _Pass:
    """What the next forward pass works on: of `rows` it reads the columns from `start`, its own tokens are written from `write` on."""

    rows: slice
    start: int
    write: int


class TextCache:
    """Texts that are written at the same time, each in a row of its own.

    Attributes:
        rows: texts at once.
        store: the layers' arrays, for the model's code; `enter` and `step` say what a pass reads and writes of them.
    """

    def __init__(self, rows: int, longest: int, max_new: int) -> None:
        """From prompts of at most `longest` tokens, with at most `max_new` more."""
        self.rows = rows
        most = longest + max_new
        self._longest, self._columns = longest, most + -(-most // _SPARE)
        self._first: list[int] = []  # the column in which each text begins
        self._end = longest  # the column after the last of each text
        self._pass = _Pass(rows=slice(0, 0), start=0, write=0)
        self.store: Any = Cache(layer_class_to_replicate=partial(_Layer, self._pass, rows, self._columns))  # type: ignore[arg-type]

    def enter(self, length: int, beginning: Beginning) -> int:
        """A prompt of `length` tokens takes the next row; the pass that follows reads those after `beginning`.

        Returns:
            How many `beginning` has.
        """
        row, start, known = len(self._first), self._end - length, 0
        for layer, held in zip(self.store.layers, beginning, strict=bool(beginning)):
            known = held[0].shape[-2]
            for array, values in zip((layer.keys, layer.values), held, strict=True):
                array[row : row + 1, :, start : start + known] = values
        self._first.append(start)
        self._set(slice(row, row + 1), start, start + known)
        return known

    def beginning(self, tokens: int) -> Beginning:
        """A copy of the first `tokens` tokens of the text that entered last."""
        row, start = len(self._first) - 1, self._first[-1]
        part = (slice(row, row + 1), slice(None), slice(start, start + tokens))
        return [(layer.keys[part].clone(), layer.values[part].clone()) for layer in self.store.layers]

    def step(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Every text gets one token, in the pass that follows.

        Returns:
            (int64[texts, columns], 1 where the pass sees a token of the text; int64[texts, 1], the new token's position).
        """
        if self._end == self._columns:
            self._move_left(min(min(self._first), self._end - self._longest))
        start, first = min(self._first), torch.tensor(self._first)[:, None]
        self._set(slice(0, len(self._first)), start, self._end)
        self._end += 1
        return (torch.arange(start, self._end) >= first).long(), self._end - 1 - first

    def leave(self, row: int) -> None:
        """The text in `row` has ended; the last text moves into it."""
        last, start = len(self._first) - 1, self._first.pop()
        if row < last:
            self._first[row] = start
            for array in self._arrays():
                array[row, :, start : self._end] = array[last, :, start : self._end]

    def _move_left(self, columns: int) -> None:
        for array in self._arrays():
            for row, start in enumerate(self._first):
                array[row, :, start - columns : self._end - columns] = array[row, :, start : self._end].clone()
        self._first = [start - columns for start in self._first]
        self._end -= columns

    def _arrays(self) -> list[torch.Tensor]:
        return [array for layer in self.store.layers for array in (layer.keys, layer.values)]

    def _set(self, rows: slice, start: int, write: int) -> None:
        self._pass.rows, self._pass.start, self._pass.write = rows, start, write


class _Layer(DynamicLayer):  # type: ignore[no-untyped-call]
    """One layer's arrays, of which a forward pass gets what it works on. Zeros at first: what is masked is multiplied by 0."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, working: _Pass, rows: int, columns: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.working, self.n_rows, self.columns = working, rows, columns

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys, self.values = (
            new.new_zeros(self.n_rows, new.shape[1], self.columns, new.shape[3]) for new in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self._put(self.keys, key_states), self._put(self.values, value_states)

    def _put(self, array: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        rows, stop = self.working.rows, self.working.write + new.shape[-2]
        array[rows, :, self.working.write : stop] = new
        return array[rows, :, self.working.start : stop]

    def get_seq_length(self) -> int:
        return self.working.write - self.working.start
