"""Strict YAML in, and what of it is the run's identity."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from eval_core.canonical import digest_json
from eval_core.errors import SpecError, UsageError
from eval_core.spec import EvalSpec, LmEvalTask, MultipleChoiceTask, PerplexityTask, identity
from eval_core.spec_yaml import example_spec, load_spec, parse_spec

GOOD = """\
name: tiny
model: model
tasks:
  - type: perplexity
    name: docs
    data: docs.jsonl
  - type: multiple_choice
    name: quiz
    data: quiz.jsonl
    prompt: "{q}"
"""


def parse(text: str) -> EvalSpec:
    return parse_spec(text, "s.yaml")


def refusal(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse(text)
    message = str(caught.value)
    assert message.startswith("s.yaml")
    assert "\n" not in message
    return message


def test_a_small_spec_gets_the_defaults() -> None:
    spec = parse(GOOD)
    docs = PerplexityTask(type="perplexity", name="docs", data="docs.jsonl")
    quiz = MultipleChoiceTask(type="multiple_choice", name="quiz", data="quiz.jsonl", prompt="{q}")
    assert spec == EvalSpec(name="tiny", model="model", tasks=(docs, quiz))


@pytest.mark.parametrize(
    ("text", "line", "unknown", "nearest"),
    [
        (GOOD + "modle: x\n", 11, "modle", "model"),
        (GOOD + "batch:\n  token: 5\n", 12, "batch.token", "tokens"),
        (GOOD + "compute: {dtyp: float32}\n", 11, "compute.dtyp", "dtype"),
        (GOOD.replace("    prompt:", "    prompts:"), 10, "tasks[1].prompts", "prompt"),
        (GOOD.replace("data: docs.jsonl", "data: docs.jsonl\n    windw: 5"), 7, "tasks[0].windw", "window"),
    ],
)
def test_an_unknown_key_names_its_line_and_the_nearest_one(text: str, line: int, unknown: str, nearest: str) -> None:
    message = refusal(text)
    assert message.startswith(f"s.yaml:{line}: unknown key '{unknown}'")
    assert f"did you mean '{nearest}'?" in message


def test_an_unknown_key_like_no_other_lists_what_is_known() -> None:
    assert "known: confidence, max_flips, reference, reference_memory, tolerance" in refusal(
        GOOD + "precision: {zzz: 1}\n"
    )


@pytest.mark.parametrize(
    "value", ["abc", "1.5", "true", "'5'", '"5"', "null", "", "[1]", "{a: 1}", "nan", "1e400", "0x10"]
)
def test_a_whole_number_is_wanted(value: str) -> None:
    assert "s.yaml:11: 'seed' must be a whole number" in refusal(f"{GOOD}seed: {value}\n")


@pytest.mark.parametrize("value", ["abc", "yes", "'5'", "null", "[0.1]", "0.1.2", "inf", "nan", "1e400"])
def test_a_number_is_wanted(value: str) -> None:
    assert "s.yaml:12: 'precision.tolerance' must be a number" in refusal(f"{GOOD}precision:\n  tolerance: {value}\n")


@pytest.mark.parametrize("value", ["1", "'true'", "null", "maybe", "[true]"])
def test_true_or_false_is_wanted(value: str) -> None:
    assert "s.yaml:11: 'allow_pickle' must be true or false" in refusal(f"{GOOD}allow_pickle: {value}\n")


@pytest.mark.parametrize("value", ["1.0", "5", "no", "null", "2024-01-01"])
def test_text_that_yaml_takes_for_something_else_wants_quotes(value: str) -> None:
    assert f"s.yaml:11: 'revision' must be text: put quotes around '{value}'" in refusal(f"{GOOD}revision: {value}\n")


def test_text_must_be_no_list() -> None:
    assert "s.yaml:11: 'revision' must be text" in refusal(f"{GOOD}revision: [a]\n")


@pytest.mark.parametrize("value", ["float23", "8", "null", "[float32]"])
def test_one_of_a_few_words_is_wanted(value: str) -> None:
    message = refusal(f"{GOOD}compute: {{dtype: {value}}}\n")
    assert "s.yaml:11: 'compute.dtype' must be one of auto, float32, bfloat16, float16, float64" in message


@pytest.mark.parametrize("line", ["compute: 5", "compute: [1]", "compute:", "compute: fast"])
def test_a_section_must_be_a_mapping(line: str) -> None:
    assert "s.yaml:11: 'compute' must be a mapping of keys" in refusal(f"{GOOD}{line}\n")


@pytest.mark.parametrize("tasks", ["[]", "5", "{type: perplexity}", ""])
def test_tasks_must_be_a_list_that_is_not_empty(tasks: str) -> None:
    message = refusal(f"name: a\nmodel: m\ntasks: {tasks}\n")
    assert "s.yaml:3: 'tasks' must be a list with at least one entry" in message


@pytest.mark.parametrize("text", ["- a", "just text", "5"])
def test_the_spec_must_be_a_mapping(text: str) -> None:
    assert refusal(text) == "s.yaml:1: 'the spec' must be a mapping of keys"


@pytest.mark.parametrize(
    ("removed", "line", "missing"),
    [
        ("name: tiny\n", 1, "name"),
        ("model: model\n", 1, "model"),
        (GOOD[GOOD.index("tasks") :], 1, "tasks"),
        ("    data: docs.jsonl\n", 4, "tasks[0].data"),
        ('    prompt: "{q}"\n', 7, "tasks[1].prompt"),
    ],
)
def test_a_missing_key_is_named_with_its_meaning(removed: str, line: int, missing: str) -> None:
    message = refusal(GOOD.replace(removed, ""))
    assert message.startswith(f"s.yaml:{line}: key '{missing}' is missing: ")


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        (GOOD + "name: again\n", 11, "name"),
        (GOOD + "batch: {tokens: 5, tokens: 6}\n", 11, "batch.tokens"),
        (GOOD.replace("    name: docs\n", "    name: docs\n    name: docs\n"), 6, "tasks[0].name"),
    ],
)
def test_a_key_given_twice_is_refused(text: str, line: int, key: str) -> None:
    assert refusal(text) == f"s.yaml:{line}: key '{key}' is given twice"


def test_an_unknown_kind_of_task() -> None:
    message = refusal(GOOD.replace("type: perplexity", "type: perplexitty"))
    assert (
        "s.yaml:4: 'tasks[0].type' must be one of perplexity, multiple_choice, lm_eval; did you mean 'perplexity'?"
        in message
    )


def test_a_task_without_a_kind() -> None:
    message = refusal("name: a\nmodel: m\ntasks: [{name: t}]\n")
    assert "s.yaml:3: key 'tasks[0].type' is missing: one of perplexity, multiple_choice" in message


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n"])
def test_an_empty_spec_says_where_to_start(text: str) -> None:
    assert refusal(text) == "s.yaml: the spec is empty; `concord spec` prints one to start from"


@pytest.mark.parametrize(
    ("text", "line"),
    [("name: [a\n", 2), ("name: a\n\tb: c\n", 2), ("a: b\nc: d: e\n", 2), ("a: *b\n", 1), ("a: 1\n---\na: 2\n", 2)],
)
def test_invalid_yaml_names_the_line(text: str, line: int) -> None:
    assert refusal(text).startswith(f"s.yaml:{line}: not valid YAML: ")


@pytest.mark.parametrize("value", ["!!bool maybe", "!!int maybe", "!!float maybe"])
@pytest.mark.parametrize("name", ["allow_pickle", "seed"])
def test_an_explicit_yaml_tag_that_does_not_fit_is_refused(name: str, value: str) -> None:
    assert f"s.yaml:11: '{name}' must be" in refusal(f"{GOOD}{name}: {value}\n")


@pytest.mark.parametrize(
    ("written", "read"),
    [("1e12", 10**12), ("1_000", 1000), ("+7", 7), ("2.0", 2), ("12345678901234567890123", 12345678901234567890123)],
)
def test_ways_to_write_a_whole_number(written: str, read: int) -> None:
    value = parse(f"{GOOD}batch: {{shard_cost: {written}}}\n").batch.shard_cost
    assert value == read
    assert type(value) is int


@pytest.mark.parametrize(("written", "read"), [("1e-5", 1e-5), ("2", 2.0), (".5", 0.5), ("1_0.5", 10.5)])
def test_ways_to_write_a_number(written: str, read: float) -> None:
    value = parse(f"{GOOD}precision: {{tolerance: {written}}}\n").precision.tolerance
    assert value == read
    assert type(value) is float


@pytest.mark.parametrize(("written", "read"), [("true", True), ("False", False), ("yes", True), ("off", False)])
def test_ways_to_write_true_and_false(written: str, read: bool) -> None:
    assert parse(f"{GOOD}allow_pickle: {written}\n").allow_pickle is read


@pytest.mark.parametrize(
    ("written", "read"), [("'no'", "no"), ('"1.0"', "1.0"), ("main # comment", "main"), ("''", "")]
)
def test_ways_to_write_text(written: str, read: str) -> None:
    assert parse(f"{GOOD}revision: {written}\n").revision == read


@pytest.mark.parametrize("none", ["null", "~", ""])
def test_none_where_it_is_allowed(none: str) -> None:
    assert parse(f"{GOOD}max_length: {none}\n").max_length is None


QUIZ = GOOD.index("  - type: multiple")


@pytest.mark.parametrize(
    ("text", "about"),
    [
        (GOOD.replace("name: tiny", "name: a/b"), "'name' is 'a/b'"),
        (GOOD.replace("name: tiny", "name: .hidden"), "'name' is '.hidden'"),
        (GOOD.replace("name: tiny", "name: ''"), "'name' is ''"),
        (GOOD.replace("name: docs", "name: my docs"), "task name 'my docs'"),
        (GOOD.replace("name: docs", "name: quiz"), "two tasks are named 'quiz'"),
        (GOOD[:QUIZ] + "    window: 8\n    stride: 9\n", "docs: stride 9 is larger than window 8"),
        (GOOD[:QUIZ] + "    window: 0\n", "'docs.window' must be 1 or more, not 0"),
        (GOOD[:QUIZ] + "    stride: -1\n", "'docs.stride' must be 1 or more, not -1"),
        (GOOD[:QUIZ] + "    limit: 0\n", "'docs.limit' must be 1 or more, not 0"),
        (GOOD + "    num_fewshot: -1\n", "'quiz.num_fewshot' must be 0 or more"),
        (GOOD + "max_length: 0\n", "'max_length' must be 1 or more"),
        (GOOD + "batch: {tokens: 0}\n", "'batch.tokens' must be 1 or more"),
        (GOOD + "batch: {pad_to_multiple: 0}\n", "'batch.pad_to_multiple' must be 1 or more"),
        (GOOD + "batch: {shard_cost: -5}\n", "'batch.shard_cost' must be 1 or more"),
        (GOOD + "compute: {threads: 0}\n", "'compute.threads' must be 1 or more"),
        (GOOD + "compute: {head_rows: 0}\n", "'compute.head_rows' must be 1 or more"),
        (GOOD + "audit: {micro_batches: -1}\n", "'audit.micro_batches' must be 0 or more"),
        (GOOD + "precision: {max_flips: -1}\n", "'precision.max_flips' must be 0 or more"),
        (GOOD + "precision: {reference_memory: -1}\n", "'precision.reference_memory' must be 0 or more"),
        (GOOD + "report: {worst_samples: -1}\n", "'report.worst_samples' must be 0 or more"),
        (GOOD + "precision: {tolerance: 0}\n", "'precision.tolerance' must be above 0"),
        (GOOD + "precision: {confidence: 1}\n", "'precision.confidence' must lie between 0 and 1"),
        (GOOD + "work: {stall_timeout: 0}\n", "'work.stall_timeout' must lie between 0 and"),
        (GOOD + "work: {progress_interval: 0}\n", "'work.progress_interval' must lie between 0 and"),
        (GOOD + "report: {bootstrap: 0}\n", "'report.bootstrap' must be 1 or more"),
    ],
)
def test_values_that_make_no_sense(text: str, about: str) -> None:
    assert about in refusal(text)


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e20"])
def test_a_timeout_must_be_one_that_can_be_waited_for(seconds: str) -> None:
    assert "'work.stall_timeout'" in refusal(f"{GOOD}work: {{stall_timeout: {seconds}}}\n")


def test_the_example_parses_once_it_is_filled_in() -> None:
    numbers = itertools.count()
    spec = parse(re.sub(r"(?<=: )\.\.\.(?= )", lambda _: f"filled{next(numbers)}", example_spec()))
    assert spec == EvalSpec(
        name="filled0",
        model="filled1",
        tasks=(
            PerplexityTask(type="perplexity", name="filled2", data="filled3"),
            MultipleChoiceTask(type="multiple_choice", name="filled4", data="filled5", prompt="filled6"),
            LmEvalTask(lm_eval="filled7"),
        ),
    )


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_spec_that_cannot_be_read(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SpecError, match=r"s\.yaml: the spec can't be read: "):
        load_spec(path)


def test_a_spec_error_is_a_usage_error() -> None:
    assert issubclass(SpecError, UsageError)
    assert SpecError.exit_code == 2


FULL = parse(GOOD)
PATHS = {"name", "model", "revision", "allow_pickle", "tasks[0].data", "tasks[1].data", "tasks[1].fewshot_data"}


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """The path of every field in a spec that is no section."""
    if is_dataclass(value):
        for f in fields(value):
            yield from leaves(getattr(value, f.name), f"{path}.{f.name}".lstrip("."))
    elif isinstance(value, tuple):
        for i, member in enumerate(value):
            yield from leaves(member, f"{path}[{i}]")
    else:
        yield path


def changed(value: Any, path: str) -> Any:
    """`value` with another value at `path`."""
    head, _, rest = path.partition(".")
    if rest:
        name, _, number = head.rstrip("]").partition("[")
        child = getattr(value, name)
        if number:
            new = tuple(changed(c, rest) if i == int(number) else c for i, c in enumerate(child))
        else:
            new = changed(child, rest)
        return replace(value, **{name: new})
    hint, old = get_type_hints(type(value))[head], getattr(value, head)
    if get_origin(hint) is Literal:
        return replace(value, **{head: next((a for a in get_args(hint) if a != old), "other")})
    new = not old if isinstance(old, bool) else "x" if old is None else old * 2 or old + 1
    return replace(value, **{head: new})


@pytest.mark.parametrize("path", sorted(leaves(FULL)))
def test_identity_changes_with_every_field_but_paths_work_and_report(path: str) -> None:
    other = changed(FULL, path)
    assert other != FULL
    same = path in PATHS or path.startswith(("work.", "report."))
    assert (digest_json(identity(other)) == digest_json(identity(FULL))) is same
