"""Texts in Parquet are what a list of them is, and a damaged file is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_core.canonical import digest_strings
from eval_core.errors import CorruptFileError
from eval_core.plan import texts as module
from eval_core.plan.texts import Texts, write_texts


@given(st.lists(st.text(max_size=5), max_size=20), st.data())
def test_they_are_a_list_in_blocks(rows: list[str], data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", data.draw(st.integers(1, 7)))
        texts = Texts(write_texts(rows), "here")
    assert len(texts) == len(rows)
    assert list(texts) == rows
    assert texts == rows
    assert texts != [*rows, "more"]
    assert digest_strings(texts) == digest_strings(rows)
    for i in data.draw(st.permutations(range(-len(rows), len(rows)))):
        assert texts[i] == rows[i]
    part = data.draw(st.slices(len(rows)))
    assert texts[part] == rows[part]
    for i in (len(rows), -len(rows) - 1):
        with pytest.raises(IndexError):
            texts[i]


def test_a_damaged_file_is_named() -> None:
    whole = write_texts(["a text", "another"] * 100)
    with pytest.raises(CorruptFileError, match="here: damaged"):
        Texts(whole[:-1], "here")
    middle = len(whole) // 3
    with pytest.raises(CorruptFileError, match="here: damaged"):
        list(Texts(whole[:40] + bytes(middle) + whole[40 + middle :], "here"))
