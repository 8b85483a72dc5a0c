"""The command line's flags, and the spec that they stand for."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
from lm_eval._cli.utils import MergeDictAction

from eval_core.errors import SpecError
from eval_core.flags import Flags, spec_of_flags
from eval_core.spec import GenKwargs, LmEvalTask
from eval_core.spec_yaml import example_spec, parse_spec


def task(**flags: Any) -> LmEvalTask:
    (entry,) = spec_of_flags(Flags(model="m", tasks="t", **flags)).tasks
    assert isinstance(entry, LmEvalTask)
    return entry


@pytest.mark.parametrize(
    "texts",
    [
        ("temperature=0.7,top_p=.95,top_k=40,do_sample=true",),
        ("max_gen_toks=8", "do_sample=False"),
        ('until=["a,b", "=", "]"],max_gen_toks=3',),
        ("""until=['\\n\\n', "a, b"],temperature=0""",),
        ("""until=["don't", 'say "x"']""",),
        ('{"until": ["\\n", "é 😀"], "temperature": 1e-05}',),
        ("do_sample=TRUE,temperature=1e-3",),
    ],
)
def test_settings_of_a_generation_are_read_as_by_the_harness(texts: tuple[str, ...]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gen_kwargs", nargs="+", action=MergeDictAction)
    theirs = parser.parse_args(["--gen_kwargs", *texts]).gen_kwargs
    ours = {name: value for name, value in vars(task(gen_kwargs=texts).gen_kwargs).items() if value is not None}
    assert {name: list(v) if isinstance(v, tuple) else v for name, v in ours.items()} == theirs


def test_one_stop_text_needs_no_list() -> None:
    assert task(gen_kwargs=("until=END",)).gen_kwargs == GenKwargs(until=("END",))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("num_beams=4", "--gen_kwargs: unknown key 'num_beams'"),
        ("max_new_tokens=4", "unknown key 'max_new_tokens'; did you mean 'max_gen_toks'?"),
        ("max_gen_toks=many", "--gen_kwargs: 'max_gen_toks' must be a whole number, not 'many'"),
        ("max_gen_toks=0", "'gen_kwargs.max_gen_toks' must be 1 or more"),
        ("top_p=1.5", "'gen_kwargs.top_p' must be above 0 and at most 1"),
        ("temperature=-1", "'gen_kwargs.temperature' must be 0 or more"),
        ("temperature", "--gen_kwargs: expected key=value, not 'temperature'"),
        ("{temperature: 1}", "--gen_kwargs: not valid JSON"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(text: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        task(gen_kwargs=(text,))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "template", "turns"),
    [
        ({}, False, None),
        ({"apply_chat_template": "true"}, True, None),
        ({"apply_chat_template": "rag", "fewshot_as_multiturn": "true"}, "rag", True),
        ({"apply_chat_template": "true", "fewshot_as_multiturn": "False"}, True, False),
    ],
)
def test_a_chat_template_by_flag(given: dict[str, str], template: bool | str, turns: bool | None) -> None:
    entry = task(**given)
    assert (entry.apply_chat_template, entry.fewshot_as_multiturn) == (template, turns)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"fewshot_as_multiturn": "true"}, "give 'apply_chat_template' too"),
        ({"apply_chat_template": "true", "fewshot_as_multiturn": "maybe"}, "must be true or false, not 'maybe'"),
    ],
)
def test_turns_without_a_conversation_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        task(**given)


@pytest.mark.parametrize(
    ("entry", "meant"),
    [
        ("apply_chat_template: true", {"apply_chat_template": True}),
        ("apply_chat_template: rag", {"apply_chat_template": "rag"}),
        ("gen_kwargs: {until: [a, b], top_k: 3}", {"gen_kwargs": GenKwargs(until=("a", "b"), top_k=3)}),
    ],
)
def test_the_same_in_a_spec(entry: str, meant: dict[str, Any]) -> None:
    spec = parse_spec(f"name: n\nmodel: m\ntasks:\n  - {{lm_eval: t, {entry}}}\n", "s.yaml")
    assert spec.tasks == (LmEvalTask(lm_eval="t", **meant),)


def test_an_unknown_setting_in_a_spec_names_its_line() -> None:
    with pytest.raises(SpecError, match=r"s\.yaml:4: unknown key 'tasks\[0\]\.gen_kwargs\.num_beams'"):
        parse_spec("name: n\nmodel: m\ntasks:\n  - {lm_eval: t, gen_kwargs: {num_beams: 2}}\n", "s.yaml")


def test_the_example_shows_a_sections_keys_in_a_task() -> None:
    lines = example_spec().splitlines()
    (at,) = [n for n, line in enumerate(lines) if line.startswith("    gen_kwargs:")]
    assert lines[at + 1].startswith("      until: null  #")
