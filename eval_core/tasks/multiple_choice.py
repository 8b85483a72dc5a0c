"""Multiple choice: the log-likelihood of each answer after one prompt."""

from __future__ import annotations

import difflib
import random
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from eval_core.errors import DataError, ModelError
from eval_core.spec import MultipleChoiceTask
from eval_core.tasks.documents import Document
from eval_core.tasks.examples import Example, Request, example_seed
from eval_core.tokenizer import Tokenizer

_CHUNK = 1024


def build_multiple_choice(
    task: MultipleChoiceTask,
    documents: Iterable[Document],
    pool: list[Document],
    tokenizer: Tokenizer,
    max_length: int,
    seed: int,
) -> Iterator[Example]:
    """The examples of `task`, in the documents' order.

    `pool` is where solved examples are drawn from, by a seed of (task, example); an example is never
    drawn for itself.

    Raises:
        DataError: an answer's index is out of range, a field is missing, an answer has no tokens or doesn't fit.
        ModelError: `bos: always` and the tokenizer has no BOS token.
    """
    prefix = _prefix(task, tokenizer)
    numbered = enumerate(documents)
    while chunk := list(islice(numbered, _CHUNK)):
        prompts, answers = [], []
        for index, document in chunk:
            prompts.append(_prompt(task, document, pool, example_seed(seed, task.name, index)))
            answers.append(_answers(task, document))
        pairs = [
            join_pair(prompt, task.delimiter + answer)
            for prompt, texts in zip(prompts, answers, strict=True)
            for answer in texts
        ]
        encoded = iter(encode_pairs(pairs, tokenizer, prefix))
        for (index, document), prompt, texts in zip(chunk, prompts, answers, strict=True):
            requests, truncated, rejoined = [], 0, 0
            for text in texts:
                context, target, alone = next(encoded)
                tokens, cut = fit_pair(document.where, "answer", text, context, target, max_length)
                truncated = max(truncated, cut)
                rejoined += alone
                requests.append(
                    Request(
                        tokens=tokens,
                        n_scored=len(target),
                        characters=len(text),
                        bytes=len(text.encode("utf-8", "surrogatepass")),
                    )
                )
            yield Example(
                fields=document.fields,
                prompt=prompt,
                targets=texts,
                gold=document.field(task.answer, int),
                seed=example_seed(seed, task.name, index),
                words=0,
                bytes=0,
                truncated=truncated,
                rejoined=rejoined,
                items=[requests],
            )


def join_pair(prompt: str, target: str) -> tuple[str, str]:
    """White space at the end of the prompt belongs to the target, as in the lm-evaluation-harness."""
    kept = prompt.rstrip()
    return kept, prompt[len(kept) :] + target


def fit_pair(
    where: str, what: str, text: str, context: list[int], target: list[int], max_length: int
) -> tuple[list[int], int]:
    """(the tokens of a context and its target, cut on the left to what the model takes, how many were cut).

    Raises:
        DataError: there is no context or no target, or the target alone doesn't fit; names `where`, `what` the target is and its `text`.
    """
    if not context:
        raise DataError(f"{where}: the prompt is empty and this tokenizer has neither BOS nor EOS; give it a text")
    if not target:
        raise DataError(f"{where}: {what} {text!r} has no tokens to score; give it a text")
    if len(target) > max_length:
        raise DataError(f"{where}: {what} {text[:40]!r}... has {len(target)} tokens, more than max_length {max_length}")
    tokens = (context + target)[-(max_length + 1) :]
    return tokens, len(context) + len(target) - len(tokens)


def encode_pairs(
    pairs: list[tuple[str, str]], tokenizer: Tokenizer, prefix: int | None
) -> Iterator[tuple[list[int], list[int], bool]]:
    """(context ids, target ids, whether the target was encoded by itself) of each (context, target).

    As the lm-evaluation-harness: context + target is encoded as one text and cut at the length of the
    encoded context, so a token that spans the join counts to the context. Where that leaves no
    token for the target (there the harness stops with an assertion), the target is encoded by itself.
    An empty context becomes `prefix`, or else BOS or EOS. Where the tokenizer splits the text at the join anyway, both
    sides are encoded apart, which gives the same ids.
    """
    apart = [
        tokenizer.splits_before_space and target[:1] == " " and not context[-1:].isspace() for context, target in pairs
    ]
    needed = dict.fromkeys(context for context, _ in pairs)
    needed |= dict.fromkeys(
        target if split else context + target for (context, target), split in zip(pairs, apart, strict=True)
    )
    texts = list(needed)
    ids = dict(zip(texts, tokenizer.encode_batch(texts), strict=True))
    fallback = prefix if prefix is not None else tokenizer.first
    for (context, target), split in zip(pairs, apart, strict=True):
        head = ids[context]
        tail = ids[target] if split else ids[context + target][len(head) :]
        alone = not tail and bool(target)
        if alone:
            tail = tokenizer.encode_batch([target])[0]
        start = prefix if head else fallback
        if not head and tail[:1] == [start]:
            head, tail = tail[:1], tail[1:]
        if start is not None and head[:1] != [start]:
            head = [start, *head]
        yield head, tail, alone


def _prefix(task: MultipleChoiceTask, tokenizer: Tokenizer) -> int | None:
    if task.bos == "always" and tokenizer.bos is None:
        raise ModelError(f"task '{task.name}': bos is 'always', but this tokenizer has no BOS token; say auto or never")
    wanted = task.bos == "always" or (task.bos == "auto" and tokenizer.adds_bos)
    return tokenizer.bos if wanted else None


def _prompt(task: MultipleChoiceTask, document: Document, pool: list[Document], seed: int) -> str:
    parts = []
    if task.num_fewshot:
        for solved in _draw(task, document, pool, seed):
            right = _answers(task, solved)[solved.field(task.answer, int)]
            parts.append(fill(task, solved) + task.delimiter + right)
    return task.fewshot_separator.join([*parts, fill(task, document)])


def _draw(task: MultipleChoiceTask, document: Document, pool: list[Document], seed: int) -> list[Document]:
    """`num_fewshot` different lines of `pool`, none of which says what `document` says."""
    draw = random.Random(seed)
    tried: set[int] = set()
    chosen: list[Document] = []
    while len(chosen) < task.num_fewshot:
        if len(tried) == len(pool):
            raise DataError(
                f"task '{task.name}': num_fewshot is {task.num_fewshot}, but there are {len(chosen)} to draw from"
            )
        i = draw.randrange(len(pool))
        if i not in tried and pool[i].fields != document.fields:
            chosen.append(pool[i])
        tried.add(i)
    return chosen


def fill(task: MultipleChoiceTask, document: Document) -> str:
    """The prompt of `document`: {field} stands for a field, {{ and }} for braces."""

    def value(match: re.Match[str]) -> str:
        if match[0] in ("{{", "}}"):
            return match[0][0]
        name = match[1]
        if name not in document.fields:
            near = difflib.get_close_matches(name, document.fields, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else f" (it has: {', '.join(document.fields)})"
            raise DataError(f"{document.where}: the prompt of task '{task.name}' wants field '{name}'{hint}")
        return _text(document.fields[name])

    return re.sub(r"\{\{|\}\}|\{(\w+)\}", value, task.prompt)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _answers(task: MultipleChoiceTask, document: Document) -> list[str]:
    answers: list[Any] = document.field(task.choices, list)
    if len(answers) < 2 or not all(isinstance(a, str) for a in answers):
        raise DataError(f"{document.where}: field '{task.choices}' must be a list of two or more texts")
    gold = document.field(task.answer, int)
    if not 0 <= gold < len(answers):
        raise DataError(
            f"{document.where}: field '{task.answer}' is {gold}, but there are {len(answers)} answers (0 to {len(answers) - 1})"
        )
    return answers
