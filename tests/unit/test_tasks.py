"""From documents to requests: windows, the join of prompt and answer, few-shot examples and every error of the data."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tokenizers import AddedToken, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from eval_core.errors import ConcordError, DataError, ModelError
from eval_core.plan.files import load_plan, save_plan
from eval_core.plan.types import Plan
from eval_core.spec import MultipleChoiceTask, PerplexityTask
from eval_core.storage import Store
from eval_core.tasks.documents import Document, read_documents, stream_documents
from eval_core.tasks.examples import Example, example_seed
from eval_core.tasks.multiple_choice import build_multiple_choice, encode_pairs, fill, join_pair
from eval_core.tasks.perplexity import build_perplexity, rolling_windows
from eval_core.tokenizer import Tokenizer

BOS, EOS = 0, 1
DOCS = PerplexityTask(type="perplexity", name="docs", data="docs.jsonl")
QUIZ = MultipleChoiceTask(type="multiple_choice", name="quiz", data="quiz.jsonl", prompt="{q}")


def documents(*rows: dict[str, Any]) -> list[Document]:
    return [Document(f"data.jsonl:{i}", row) for i, row in enumerate(rows, start=1)]


def question(q: str = "a text?", choices: Any = ("one", "two"), answer: Any = 0, **more: Any) -> dict[str, Any]:
    return {"q": q, "choices": list(choices), "answer": answer, **more}


# --- windows

lengths = st.integers(2, 60)
windows = st.integers(1, 20).flatmap(lambda window: st.tuples(st.just(window), st.integers(1, window)))


@given(lengths, windows)
def test_every_token_is_scored_once_and_in_order(length: int, window_stride: tuple[int, int]) -> None:
    scored = [t for r in rolling_windows(list(range(length)), *window_stride) for t in r.tokens[-r.n_scored :]]
    assert scored == list(range(1, length))


@given(lengths, windows)
def test_windows_are_pieces_of_the_document_that_fit(length: int, window_stride: tuple[int, int]) -> None:
    for request in rolling_windows(list(range(length)), *window_stride):
        first, last = request.tokens[0], request.tokens[-1]
        assert request.tokens == list(range(first, last + 1))
        assert len(request.tokens) <= window_stride[0] + 1


@given(lengths, windows)
def test_context_is_enough_or_all_there_is(length: int, window_stride: tuple[int, int]) -> None:
    window, stride = window_stride
    for request in rolling_windows(list(range(length)), window, stride):
        context = len(request.tokens) - request.n_scored
        assert context >= window - stride + 1 or request.tokens[0] == 0
        assert context >= 1


@given(lengths, st.integers(1, 20))
def test_windows_are_those_of_the_harness(length: int, window: int) -> None:
    prefix, *tokens = range(length)
    pairs = get_rolling_token_windows(tokens, prefix, window, context_len=1)
    ours = [
        (r.tokens[: len(r.tokens) - r.n_scored], r.tokens[-r.n_scored :])
        for r in rolling_windows([prefix, *tokens], window, window)
    ]
    assert ours == list(map(make_disjoint_window, pairs))


@given(lengths, windows)
def test_a_stride_is_what_the_harness_calls_a_context_length(length: int, window_stride: tuple[int, int]) -> None:
    window, stride = window_stride
    prefix, *tokens = range(length)
    theirs = get_rolling_token_windows(tokens, prefix, window, context_len=window - stride + 1)
    ours = [(r.tokens[:-1], r.tokens[-r.n_scored :]) for r in rolling_windows([prefix, *tokens], window, stride)]
    assert ours == list(theirs)


def built(task: PerplexityTask, tokenizer: Tokenizer, text: str, max_length: int = 1000) -> Example:
    (example,) = build_perplexity(task, documents({"text": text}), tokenizer, max_length, seed=0)
    return example


def first_request(task: PerplexityTask, tokenizer: Tokenizer, text: str) -> tuple[list[int], int]:
    request = built(task, tokenizer, text).items[0][0]
    return request.tokens, request.n_scored


# --- perplexity


@pytest.mark.parametrize("bos", ["auto", "always"])
def test_a_document_is_conditioned_on_bos(bos: Any, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_batch(["a text"])[0]
    assert first_request(replace(DOCS, bos=bos), tokenizer, "a text") == ([BOS, *ids], len(ids))


@pytest.mark.parametrize("bos", ["auto", "always", "never"])
def test_bos_is_never_doubled(bos: Any, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_batch(["a text"])[0]
    assert first_request(replace(DOCS, bos=bos), tokenizer, "<s>a text") == ([BOS, *ids], len(ids))


def test_without_bos_the_first_token_is_context_only(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_batch(["a text"])[0]
    assert first_request(replace(DOCS, bos="never"), tokenizer, "a text") == (ids, len(ids) - 1)


def test_auto_takes_eos_where_there_is_no_bos(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_batch(["a text"])[0]
    assert first_request(DOCS, replace(tokenizer, bos=None), "a text") == ([EOS, *ids], len(ids))


def test_auto_without_bos_and_eos_is_never(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_batch(["a text"])[0]
    assert first_request(DOCS, replace(tokenizer, bos=None, eos=None), "a text") == (ids, len(ids) - 1)


NO_BOS = "bos is 'always', but this tokenizer has no BOS token; say auto or never"


def test_bos_always_needs_one(tokenizer: Tokenizer) -> None:
    bare = replace(tokenizer, bos=None)
    with pytest.raises(ModelError, match=f"task 'docs': {NO_BOS}"):
        built(replace(DOCS, bos="always"), bare, "a text")
    with pytest.raises(ModelError, match=f"task 'quiz': {NO_BOS}"):
        quiz(question(), bare, bos="always")


@pytest.mark.parametrize(
    ("text", "words", "size"), [("two words", 2, 9), (" a  b\n", 4, 6), ("naïve 😀", 2, 11), ("one", 1, 3)]
)
def test_words_and_bytes_of_a_document(text: str, words: int, size: int, tokenizer: Tokenizer) -> None:
    example = built(DOCS, tokenizer, text)
    assert (example.words, example.bytes) == (words, size)


def test_window_and_stride_default_to_max_length(tokenizer: Tokenizer) -> None:
    text = "some words of a text " * 5
    whole = [BOS, *tokenizer.encode_batch([text])[0]]
    assert built(DOCS, tokenizer, text, max_length=7).items == [[r] for r in rolling_windows(whole, 7, 7)]
    assert built(replace(DOCS, window=5), tokenizer, text, 7).items == [[r] for r in rolling_windows(whole, 5, 5)]
    assert built(replace(DOCS, stride=3), tokenizer, text, 7).items == [[r] for r in rolling_windows(whole, 7, 3)]


# --- the join of prompt and answer


class Harness(TemplateLM):
    """The harness's own way from (context, continuation) to ids, on our tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.ids = tokenizer

    @property
    def eot_token_id(self) -> int:
        return EOS

    @property
    def prefix_token_id(self) -> int:
        return BOS

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        return self.ids.encode_batch([string])[0]

    def _loglikelihood_tokens(self, requests: Any, **kwargs: Any) -> Any:
        return [(context, target) for _, context, target in requests]

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> Any:
        raise NotImplementedError

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> Any:
        raise NotImplementedError

    def encode(self, context: str, target: str) -> tuple[list[int], list[int]]:
        ((head, tail),) = self.loglikelihood([SimpleNamespace(args=(context, target))], disable_tqdm=True)
        return head, tail


def ours(
    context: str, target: str, tokenizer: Tokenizer, prefix: int | None = None
) -> tuple[list[int], list[int], bool]:
    ((head, tail, alone),) = encode_pairs([join_pair(context, target)], tokenizer, prefix)
    return head, tail, alone


words = st.lists(
    st.sampled_from(["the", "text", "wid", "th", " ", "  ", "\n", "\u00a0", "é", "漢", "😀", "<s>"]), max_size=6
)
texts = st.text(max_size=12) | words.map("".join)


@given(context=texts, target=texts)
def test_pairs_are_encoded_as_by_the_harness(context: str, target: str, tokenizer: Tokenizer) -> None:
    assume(target)
    assume(context == "" or context.strip())  # of white space alone the harness leaves an empty context and stops
    head, tail = Harness(tokenizer).encode(context, target)
    if tail:
        assert ours(context, target, tokenizer) == (head, tail, False)
    elif context:  # where the harness stops with an assertion
        _, moved = join_pair(context, target)
        assert ours(context, target, tokenizer) == (head, tokenizer.encode_batch([moved])[0], True)


spaced = st.sampled_from(["the", "'s", "12", "!?", " ", "\t", "\n", "\x1c", "\u00a0", "é", "😀", "<s>", "</s>"])


@given(context=st.lists(spaced, max_size=6).map("".join), target=st.lists(spaced, max_size=4).map("".join))
def test_what_is_encoded_apart_is_encoded_as_a_whole(context: str, target: str, tokenizer: Tokenizer) -> None:
    assert tokenizer.splits_before_space
    context, target = join_pair(context, f" {target}")
    assume(context)
    ((head, tail, _),) = encode_pairs([(context, target)], tokenizer, None)
    assert head[-len(tokenizer.encode_batch([context])[0]) :] + tail == tokenizer.encode_batch([context + target])[0]


def changed(tokenizer: Tokenizer, change: Callable[[FastTokenizer], object]) -> Tokenizer:
    fast = FastTokenizer.from_str(tokenizer.fast.to_str())
    change(fast)
    return replace(tokenizer, fast=fast)


@pytest.mark.parametrize(
    "change",
    [
        lambda fast: setattr(fast, "normalizer", normalizers.Prepend("▁")),
        lambda fast: setattr(fast, "pre_tokenizer", pre_tokenizers.Metaspace()),
        lambda fast: setattr(fast, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)),
        lambda fast: setattr(fast, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
        lambda fast: setattr(fast.model, "dropout", 0.5),
        lambda fast: fast.add_tokens([AddedToken("a b")]),
        lambda fast: fast.add_tokens([AddedToken("ab", rstrip=True)]),
        lambda fast: fast.add_tokens([AddedToken("ab", single_word=True)]),
    ],
)
def test_where_a_piece_can_span_a_space_nothing_is_encoded_apart(
    change: Callable[[FastTokenizer], object], tokenizer: Tokenizer
) -> None:
    assert not changed(tokenizer, change).splits_before_space


@given(st.lists(st.tuples(texts, texts), max_size=6))
def test_a_batch_of_pairs_is_each_pair_by_itself(pairs: list[tuple[str, str]]) -> None:
    tokenizer = small_tokenizer()
    joined = [join_pair(*pair) for pair in pairs]
    assert list(encode_pairs(joined, tokenizer, BOS)) == [next(encode_pairs([p], tokenizer, BOS)) for p in joined]


@given(context=texts, target=texts.filter(bool), prefix=st.sampled_from([None, BOS]))
def test_a_target_always_has_something_before_it(
    context: str, target: str, prefix: int | None, tokenizer: Tokenizer
) -> None:
    head, tail, _ = ours(context, target, tokenizer, prefix)
    assert head
    assert tail or (head == [BOS] and not context.strip())
    if prefix is not None:
        assert head[0] == BOS
        assert head[1:2] != [BOS] or context.lstrip().startswith("<s><s>")


@pytest.mark.parametrize("context", ["", " ", " \n\t"])
def test_an_empty_prompt_becomes_bos_or_else_eos(context: str, tokenizer: Tokenizer) -> None:
    whole = tokenizer.encode_batch([context + "text"])[0]
    assert ours(context, "text", tokenizer) == ([BOS], whole, False)
    assert ours(context, "text", replace(tokenizer, bos=None)) == ([EOS], whole, False)


def test_white_space_at_the_end_of_the_prompt_goes_to_the_target() -> None:
    assert join_pair("Q: x \n", "A") == ("Q: x", " \nA")
    assert join_pair("  x", " y") == ("  x", " y")


def small_tokenizer() -> Tokenizer:
    """Single letters and one merge, `ab`; no BOS or EOS among the ids that a text can get."""
    vocabulary = {"<s>": 0, "</s>": 1, "a": 2, "b": 3, "c": 4, "ab": 5, "?": 6}
    fast = FastTokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b")], unk_token="?"))
    return Tokenizer(fast=fast, bos=0, eos=1, adds_bos=False)


def test_a_token_that_spans_the_join_counts_to_the_context() -> None:
    # "ca" + "bc" is c|ab|c as a whole and c|a before the join: its first two tokens are the context's
    assert ours("ca", "bc", small_tokenizer()) == ([4, 2], [4], False)


def test_a_target_left_without_tokens_is_encoded_by_itself_and_counted() -> None:
    assert ours("ca", "b", small_tokenizer()) == ([4, 2], [3], True)
    task = replace(QUIZ, delimiter="")
    (example,) = build_multiple_choice(task, documents(question("ca", ["b", "c", "bc"])), [], small_tokenizer(), 8, 0)
    assert example.rejoined == 1
    assert [r.tokens[-r.n_scored :] for r in example.items[0]] == [[3], [4], [4]]


# --- multiple choice


def quiz(row: dict[str, Any], tokenizer: Tokenizer, max_length: int = 64, **changes: Any) -> Example:
    (example,) = build_multiple_choice(replace(QUIZ, **changes), documents(row), [], tokenizer, max_length, seed=3)
    return example


def test_the_answers_of_a_question_are_one_item(tokenizer: Tokenizer) -> None:
    example = quiz(question("which?", ["one", "número", ""], 1), tokenizer)
    (requests,) = example.items
    ids = tokenizer.encode_batch(["which?", " one", " número", " "])
    assert [r.tokens for r in requests] == [ids[0] + target for target in ids[1:]]
    assert [r.n_scored for r in requests] == [len(target) for target in ids[1:]]
    assert [(r.characters, r.bytes) for r in requests] == [(3, 3), (6, 7), (0, 0)]
    assert (example.gold, example.prompt, example.targets) == (1, "which?", ["one", "número", ""])
    assert (example.truncated, example.rejoined) == (0, 0)


@pytest.mark.parametrize(
    ("bos", "adds_bos", "expected"),
    [("auto", False, 0), ("auto", True, 1), ("always", False, 1), ("never", True, 0)],
)
@pytest.mark.parametrize("start", ["", "<s>"])
def test_bos_before_a_prompt(bos: Any, adds_bos: bool, expected: int, start: str, tokenizer: Tokenizer) -> None:
    example = quiz(question(start + "which?"), replace(tokenizer, adds_bos=adds_bos), bos=bos)
    wanted = 1 if start else expected
    assert [r.tokens[: wanted + 1].count(BOS) for r in example.items[0]] == [wanted] * 2
    assert [r.tokens.count(BOS) for r in example.items[0]] == [wanted] * 2


def test_what_does_not_fit_is_cut_from_the_left_and_counted(tokenizer: Tokenizer) -> None:
    row = question("a rather long prompt", ["x", "xyz"])
    whole, cut = quiz(row, tokenizer), quiz(row, tokenizer, max_length=8)
    longest = max(len(r.tokens) for r in whole.items[0])
    assert longest > 9
    assert [r.tokens for r in cut.items[0]] == [r.tokens[-9:] for r in whole.items[0]]
    assert [r.n_scored for r in cut.items[0]] == [r.n_scored for r in whole.items[0]]
    assert (whole.truncated, cut.truncated) == (0, longest - 9)


@pytest.mark.parametrize("q", ["", " "])
def test_without_bos_and_eos_an_empty_prompt_is_refused(q: str, tokenizer: Tokenizer) -> None:
    """Else an answer's first token would be scored with nothing before it."""
    with pytest.raises(ConcordError):
        quiz(question(q), replace(tokenizer, bos=None, eos=None))


@pytest.mark.parametrize(
    ("prompt", "filled"),
    [
        ("Q: {q} A:", "Q: why? A:"),
        ("{q}{q}", "why?why?"),
        ("{{q}} {n}", "{q} 5"),
        ("{{{q}}}", "{why?}"),
        ("{ q } {} {", "{ q } {} {"),
        ("{list}", "['a']"),
        ("{evil}", "{q}"),
        ("no field", "no field"),
    ],
)
def test_fields_of_a_prompt(prompt: str, filled: str) -> None:
    row = {"q": "why?", "n": 5, "list": ["a"], "evil": "{q}"}
    assert fill(replace(QUIZ, prompt=prompt), Document("data.jsonl:1", row)) == filled


# --- few-shot examples

POOL = [question(f"question {i}?", [f"right{i}", f"wrong{i}"], i % 2) for i in range(7)]


def prompts(n: int, pool: list[Document], tokenizer: Tokenizer, seed: int = 3, name: str = "quiz") -> list[str]:
    task = replace(QUIZ, name=name, num_fewshot=n)
    return [e.prompt for e in build_multiple_choice(task, pool, pool, tokenizer, 1000, seed)]


def test_all_others_are_drawn_and_never_the_example_itself(tokenizer: Tokenizer) -> None:
    for i, prompt in enumerate(prompts(6, documents(*POOL), tokenizer)):
        *solved, own = prompt.split("\n\n")
        assert own == f"question {i}?"
        assert sorted(solved) == [f"question {k}? {('right', 'wrong')[k % 2]}{k}" for k in range(7) if k != i]


def test_the_draw_depends_on_seed_task_and_example(tokenizer: Tokenizer) -> None:
    pool = documents(*POOL)
    drawn = prompts(3, pool, tokenizer)
    assert prompts(3, pool, tokenizer) == drawn
    assert prompts(3, pool, tokenizer, seed=4) != drawn
    assert prompts(3, pool, tokenizer, name="other") != drawn
    solved = [frozenset(prompt.split("\n\n")[:-1]) for prompt in drawn]
    assert len(set(solved)) > 1


def test_seeds_are_the_same_for_ever() -> None:
    """Golden values: another seed would draw other examples for every spec that exists."""
    assert [example_seed(1234, "quiz", i) for i in range(2)] == [2176638857921164385, 4270455224184290426]


FEWSHOT = ("type: multiple_choice,", "type: multiple_choice, num_fewshot: 2,")


def drawn_in(plan: Plan) -> list[str]:
    return [p for p, task in zip(plan.examples.prompts, plan.examples.task, strict=True) if task == 1]


def test_the_draw_does_not_depend_on_limit(inputs: Path, plan_in: Callable[..., Plan]) -> None:
    limited = plan_in(inputs, FEWSHOT, ("data: quiz.jsonl,", "data: quiz.jsonl, limit: 3,"))
    assert drawn_in(limited) == drawn_in(plan_in(inputs, FEWSHOT))[:3]


def test_examples_are_drawn_from_fewshot_data(inputs: Path, plan_in: Callable[..., Plan]) -> None:
    rows = [{"question": f"other {i}", "choices": ["yes", "no"], "answer": 1} for i in range(2)]
    (inputs / "shots.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan = plan_in(inputs, FEWSHOT, ("data: quiz.jsonl,", "data: quiz.jsonl, fewshot_data: shots.jsonl,"))
    for prompt in drawn_in(plan):
        assert sorted(prompt.split("\n\n")[:2]) == ["Q: other 0\nA: no", "Q: other 1\nA: no"]


def test_an_example_is_not_drawn_for_itself_from_the_same_file(inputs: Path, plan_in: Callable[..., Plan]) -> None:
    shots = ("type: multiple_choice,", "type: multiple_choice, num_fewshot: 7,")
    plan = plan_in(inputs, shots, ("data: quiz.jsonl,", "data: quiz.jsonl, fewshot_data: quiz.jsonl,"))
    for prompt in drawn_in(plan):
        *solved, own = prompt.split("\n\n")
        assert not any(shot.startswith(own) for shot in solved)


def test_too_few_to_draw_from(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="task 'quiz': num_fewshot is 7, but there are 6 to draw from"):
        prompts(7, documents(*POOL), tokenizer)


def test_a_bad_solved_example_names_its_own_line(tokenizer: Tokenizer) -> None:
    pool = documents(question(), question(answer=5))
    with pytest.raises(DataError, match=r"data\.jsonl:2: field 'answer' is 5"):
        prompts(1, pool, tokenizer)


# --- errors of the data


def refusal(
    task: PerplexityTask | MultipleChoiceTask, row: dict[str, Any], tokenizer: Tokenizer, size: int = 64
) -> str:
    """What is said of `row` on the second line, after a good first one."""
    if isinstance(task, PerplexityTask):
        examples = build_perplexity(task, documents({"text": "good"}, row), tokenizer, size, 0)
    else:
        examples = build_multiple_choice(task, documents(question(), row), [], tokenizer, size, 0)
    with pytest.raises(DataError) as caught:
        list(examples)
    return str(caught.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"body": "a", "id": 1}, "data.jsonl:2: no field 'text' (it has: body, id)"),
        ({"text": 5}, "data.jsonl:2: field 'text' must be str, not int"),
        ({"text": None}, "data.jsonl:2: field 'text' must be str, not NoneType"),
        ({"text": ""}, "data.jsonl:2: field 'text' has no text to score; remove this line"),
        ({"text": "<s>"}, "data.jsonl:2: field 'text' has no text to score; remove this line"),
    ],
)
def test_a_bad_document(row: dict[str, Any], message: str, tokenizer: Tokenizer) -> None:
    assert refusal(DOCS, row, tokenizer) == message


def test_a_single_token_cannot_be_scored_without_bos(tokenizer: Tokenizer) -> None:
    task = replace(DOCS, bos="never")
    with pytest.raises(DataError, match=r"data\.jsonl:1: field 'text' has no text to score"):
        list(build_perplexity(task, documents({"text": "a"}), tokenizer, 64, 0))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"q": "a", "answer": 0}, "no field 'choices' (it has: q, answer)"),
        ({"q": "a", "choices": ["x", "y"]}, "no field 'answer' (it has: q, choices)"),
        (question(answer=2), "field 'answer' is 2, but there are 2 answers (0 to 1)"),
        (question(answer=-1), "field 'answer' is -1, but there are 2 answers (0 to 1)"),
        (question(answer=True), "field 'answer' must be int, not bool"),
        (question(answer="0"), "field 'answer' must be int, not str"),
        ({"q": "a", "choices": "xy", "answer": 0}, "field 'choices' must be list, not str"),
        (question(choices=["x"]), "field 'choices' must be a list of two or more texts"),
        (question(choices=["x", 5]), "field 'choices' must be a list of two or more texts"),
        (
            {"Q": "a", "choices": ["x", "y"], "answer": 0},
            "the prompt of task 'quiz' wants field 'q' (it has: Q, choices, answer)",
        ),
    ],
)
def test_a_bad_question(row: dict[str, Any], message: str, tokenizer: Tokenizer) -> None:
    assert refusal(QUIZ, row, tokenizer) == f"data.jsonl:2: {message}"


def test_a_prompt_names_the_nearest_field(tokenizer: Tokenizer) -> None:
    row = {"question": "a", "choices": ["x", "y"], "answer": 0}
    with pytest.raises(DataError, match=r"data\.jsonl:1: .* wants field 'qestion'; did you mean 'question'\?"):
        list(build_multiple_choice(replace(QUIZ, prompt="{qestion}"), documents(row), [], tokenizer, 64, 0))


def test_an_answer_without_tokens(tokenizer: Tokenizer) -> None:
    message = refusal(replace(QUIZ, delimiter=""), question(choices=["x", ""]), tokenizer)
    assert message == "data.jsonl:2: answer '' has no tokens to score; give it a text"


def test_an_answer_that_does_not_fit(tokenizer: Tokenizer) -> None:
    message = refusal(QUIZ, question(choices=["x", "0123456789"]), tokenizer, size=5)
    assert message == "data.jsonl:2: answer '0123456789'... has 11 tokens, more than max_length 5"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a"}\n\n{"text": \n', "3: not valid JSON: "),
        ('{"text": "a"}\n[1]\n', "2: a line must be a JSON object, this is a list"),
        ('"text"\n', "1: a line must be a JSON object, this is a str"),
        ("", " no examples in this file"),
        ("\n  \n", " no examples in this file"),
        ('\ufeff{"text": "a"}\n', "1: not valid JSON: "),
    ],
)
def test_a_file_that_is_no_jsonl(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read_documents(path, None)
    assert str(caught.value).startswith(f"{path}:{message}")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.jsonl: can't be read: No such file or directory"):
        read_documents(tmp_path / "none.jsonl", None)


def test_a_line_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text('{"n": 1}\nbad\n')
    stream = stream_documents(path, None)
    assert next(stream) == Document(f"{path}:1", {"n": 1})
    with pytest.raises(DataError, match=":2: not valid JSON"):
        next(stream)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="can't be read: Is a directory"):
        read_documents(tmp_path, None)


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(b'{"text": "\xff"}\n')
    with pytest.raises(DataError, match=r"d\.jsonl: can't be read: .*utf-8"):
        read_documents(path, None)


def test_lines_are_counted_with_the_blank_ones_and_limit_without(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text('\n{"n": 1}\n\n{"n": 2}\nbad, but behind the limit\n')
    assert read_documents(path, 2) == [Document(f"{path}:2", {"n": 1}), Document(f"{path}:4", {"n": 2})]


@pytest.mark.parametrize(
    "line", ['{"text": "a", "n": NaN}', '{"text": "a", "n": 1e999}', '{"text": "half a pair: \\ud800"}']
)
def test_json_that_no_plan_can_hold_is_an_error_of_its_line(
    line: str, inputs: Path, plan_in: Callable[..., Plan]
) -> None:
    (inputs / "docs.jsonl").write_text(f'{{"text": "good"}}\n{line}\n')
    with pytest.raises(DataError, match=r"docs\.jsonl:2: "):
        plan_in(inputs)


def test_half_a_surrogate_pair_in_an_unused_field_is_saved_or_refused(
    inputs: Path, plan_in: Callable[..., Plan], tmp_path: Path
) -> None:
    (inputs / "docs.jsonl").write_text('{"text": "a", "note": "\\udc00"}\n')
    with contextlib.suppress(DataError):
        plan, store = plan_in(inputs), Store(str(tmp_path / "run"))
        save_plan(plan, store)
        assert load_plan(store).digest == plan.digest
