"""From a task of the harness to requests: its code writes the prompts, we encode them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from eval_core.errors import DataError, SpecError, UsageError, first_line
from eval_core.spec import LmEvalTask
from eval_core.tasks.examples import Example, Generation, Request, example_seed
from eval_core.tasks.harness.chat import load_chat_template
from eval_core.tasks.harness.registry import harness_quiet
from eval_core.tasks.multiple_choice import encode_pairs, fit_pair, join_pair
from eval_core.tasks.perplexity import rolling_windows
from eval_core.tokenizer import Tokenizer


def build_harness_task(
    entry: LmEvalTask, task: Any, tokenizer: Tokenizer, folder: Path, max_length: int, seed: int
) -> Iterator[Example]:
    """The examples of `task`, in document order; `targets` of each are its requests' arguments.

    A request is encoded as the harness encodes it (`encode_pairs`), but for a BOS token that it would double.

    Raises:
        SpecError: the task's code fails, or asks for something unknown.
        DataError: a request has nothing to score or doesn't fit.
    """
    instances = _instances(entry, task, folder)
    encoder = _Encoder(tokenizer, max_length, end_tokens(folder, tokenizer), repeat_bos=entry.repeat_bos)
    for index, (doc_id, group) in enumerate(groupby(instances, key=lambda i: i.doc_id)):
        asked = list(group)
        items, truncated, rejoined = encoder.encode(f"task '{entry.name}', document {doc_id}", asked)
        yield Example(
            fields=plain_document(asked[0].doc),
            prompt=common_context(asked),
            targets=[list(instance.args) for instance in asked],
            gold=-1,
            seed=example_seed(seed, entry.name, index),
            words=0,
            bytes=0,
            truncated=truncated,
            rejoined=rejoined,
            items=items,
        )


def document_range(entry: LmEvalTask, task: Any) -> dict[str, Any]:
    """Which documents of `task` are evaluated, as arguments of its `doc_iterator`.

    Raises:
        SpecError: `samples` names a document that there isn't.
    """
    n = len(task.eval_docs)
    if entry.samples is not None and (beyond := [i for i in entry.samples if i >= n]):
        raise SpecError(f"task '{entry.name}' has {n} documents, 0 to {n - 1}; 'samples' names {beyond[0]}")
    limit = entry.limit
    if limit is not None:
        limit = math.ceil(n * limit) if limit < 1 else int(limit)
    return {"limit": limit, "samples": None if entry.samples is None else list(entry.samples)}


def plain_document(document: Any) -> Any:
    """A document as JSON can carry it: what is not JSON (dates, bytes, NaN) as text."""
    if isinstance(document, dict):
        return {str(name): plain_document(value) for name, value in document.items()}
    if isinstance(document, list | tuple):
        return [plain_document(value) for value in document]
    if (
        document is None
        or isinstance(document, str | bool | int)
        or (isinstance(document, float) and math.isfinite(document))
    ):
        return document
    return str(document)


def common_context(instances: list[Any]) -> str:
    """The prompt, where all requests of a document have the same one."""
    contexts = {instance.args[0] for instance in instances if len(instance.args) == 2}
    return contexts.pop() if len(contexts) == 1 else ""


def _instances(entry: LmEvalTask, task: Any, folder: Path) -> list[Any]:
    wanted = entry.apply_chat_template
    template = load_chat_template(folder, wanted if isinstance(wanted, str) else None) if wanted else None
    try:
        with harness_quiet():
            task.build_all_requests(
                **document_range(entry, task),
                rank=0,
                world_size=1,
                system_instruction=entry.system_instruction,
                apply_chat_template=bool(wanted),
                fewshot_as_multiturn=bool(entry.fewshot_as_multiturn),
                chat_template=template,
            )
    except UsageError:
        raise
    except Exception as error:  # a task is code of many hands
        raise SpecError(
            f"task '{entry.name}': its code can't build the requests: {type(error).__name__}: {first_line(error)}"
        ) from error
    instances: list[Any] = task.instances
    return instances


def end_tokens(folder: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens that end a text: what the model's configs say, and the tokenizer's EOS."""
    found = set() if tokenizer.eos is None else {tokenizer.eos}
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            said = json.loads((folder / name).read_text(encoding="utf-8")).get("eos_token_id")
            found |= set(said) if isinstance(said, list) else set() if said is None else {said}
    return tuple(sorted(found))


@dataclass(frozen=True)
class _Encoder:
    """Turns the harness's requests of one document into ours.

    Attributes:
        ends: tokens that end a generated text.
    """

    tokenizer: Tokenizer
    max_length: int
    ends: tuple[int, ...]
    repeat_bos: bool

    def encode(self, where: str, asked: list[Any]) -> tuple[list[list[Request]], int, int]:
        """(items, tokens cut off the left of the longest, continuations encoded by themselves)."""
        kinds = [instance.request_type for instance in asked]
        if kinds == ["loglikelihood_rolling"]:
            return self._windows(where, asked[0].args[0]), 0, 0
        if "loglikelihood_rolling" in kinds:
            raise SpecError(f"{where} asks for loglikelihood_rolling beside other requests, which is not supported")
        requests: list[Request] = []
        truncated = rejoined = 0
        scored = [instance.args for instance in asked if instance.request_type == "loglikelihood"]
        pairs = iter(self._pairs(where, scored))
        for instance in asked:
            if instance.request_type == "loglikelihood":
                request, cut, alone = next(pairs)
                rejoined += alone
                requests.append(request)
            else:
                prompt, way, cut = self._prompt(where, *instance.args)
                requests += [
                    Request(tokens=prompt, n_scored=0, generation=replace(way, draw=draw if way.temperature else 0))
                    for draw in range(instance.repeats or 1)
                ]
            truncated = max(truncated, cut)
        return [requests], truncated, rejoined

    def _pairs(self, where: str, pairs: list[tuple[str, str]]) -> Iterator[tuple[Request, int, bool]]:
        prefix = self.tokenizer.bos if self.tokenizer.adds_bos else None
        joined = [join_pair(context, continuation) for context, continuation in pairs]
        encoded = encode_pairs(joined, self.tokenizer, prefix)
        for (_, text), (context, target, alone) in zip(pairs, encoded, strict=True):
            tokens, cut = fit_pair(where, "continuation", text, context, target, self.max_length)
            yield Request(tokens=tokens, n_scored=len(target)), cut, alone

    def _windows(self, where: str, text: str) -> list[list[Request]]:
        (tokens,) = self.tokenizer.encode_batch([text])
        first = self.tokenizer.first
        own = tokens[:1] == [first]
        if self.repeat_bos and self.tokenizer.adds_bos and not own and first is not None:
            tokens, own = [first, *tokens], True
        if first is not None and (self.repeat_bos or not own):
            tokens = [first, *tokens]
        if len(tokens) < 2:
            raise DataError(f"{where}: it has no text to score")
        return [[request] for request in rolling_windows(tokens, self.max_length, self.max_length)]

    def _prompt(self, where: str, text: str, settings: dict[str, Any]) -> tuple[list[int], Generation, int]:
        """(tokens, how to go on, tokens cut off the left so that there is room)."""
        way = self._way(where, dict(settings))
        if way.max_new >= self.max_length:
            raise SpecError(
                f"{where}: max_gen_toks {way.max_new} leaves no room for a prompt in max_length {self.max_length}"
            )
        (tokens,) = self.tokenizer.encode_batch([text])
        start = self.tokenizer.first if self.tokenizer.adds_bos or not tokens else None
        if start is not None and tokens[:1] != [start]:
            tokens = [start, *tokens]
        if not tokens:
            raise DataError(f"{where}: the prompt is empty and this tokenizer has neither BOS nor EOS")
        kept = tokens[-(self.max_length - way.max_new) :]
        return kept, way, len(tokens) - len(kept)

    def _way(self, where: str, settings: dict[str, Any]) -> Generation:
        limits = [settings.pop(name, None) for name in _LIMITS]
        until = settings.pop("until", None) or []
        stops = [until] if isinstance(until, str) else list(until)
        if self.tokenizer.eos is not None:
            stops.append(self.tokenizer.decode([self.tokenizer.eos], special=True))
        temperature = settings.pop("temperature", None)
        sampled = settings.pop("do_sample", bool(temperature))
        top_k, top_p = settings.pop("top_k", None), settings.pop("top_p", None)
        if settings:
            known = ", ".join(["until", "do_sample", "temperature", "top_k", "top_p", *_LIMITS])
            raise SpecError(f"{where}: generation setting '{min(settings)}' is not known here (known: {known})")
        if sampled and temperature is not None and temperature <= 0:
            raise SpecError(
                f"{where}: do_sample wants a temperature above 0, not {temperature}; give one, or do_sample: false"
            )
        return Generation(
            max_new=int(next((n for n in limits if n is not None), _MAX_NEW)),
            until=tuple(dict.fromkeys(stops)),
            eos=self.ends,
            temperature=float(1.0 if temperature is None else temperature) if sampled else 0.0,
            top_k=int(top_k) if sampled and top_k else None,
            top_p=float(top_p) if sampled and top_p is not None else None,
            draw=0,
        )


_LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""What the harness calls the same limit, in its order of precedence."""

_MAX_NEW = 256
"""Tokens where a task sets no limit, as in the harness."""
