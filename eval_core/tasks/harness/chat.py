"""Chat templates, rendered as transformers renders them, without importing it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from eval_core.errors import ModelError, first_line
from eval_core.tokenizer import tokenizer_config

ChatTemplate = Callable[..., str]
"""(list of {"role", "content"}, add_generation_prompt=True) -> the prompt; False: up to the end of the last message."""

_MARK = "<<end of the last message>> "
"""Its last space shows whether a template strips what it is given."""


def load_chat_template(folder: Path, name: str | None = None) -> ChatTemplate:
    """The chat template of the tokenizer in `folder`: the one of this name, or else its only or its default one.

    As the harness does, a template that refuses a system message is given the conversation without it.

    Raises:
        ModelError: the tokenizer has none, or none of this name, or it can't be rendered.
    """
    config = tokenizer_config(folder)
    source = _choose(folder, _sources(folder, config), name)
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    special = {name: _text(value) for name, value in config.items() if name.endswith("_token") and _text(value)}
    given = special | {"tools": None, "documents": None}
    try:
        template = environment.from_string(source)
    except TemplateError as error:
        raise ModelError(f"{folder}: its chat template is broken: {first_line(error)}") from error

    def render(messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        def once(messages: list[dict[str, str]]) -> str:
            if add_generation_prompt:
                return template.render(messages=messages, add_generation_prompt=True, **given)
            marked = [*messages[:-1], messages[-1] | {"content": messages[-1]["content"] + _MARK}]
            text = template.render(messages=marked, add_generation_prompt=False, **given)
            if _MARK.strip() not in text:
                raise ModelError(
                    f"{folder}: its chat template leaves out the last message, where a task's answer begins"
                )
            end = text.rindex(_MARK.strip())
            return text[:end] if text[end:].startswith(_MARK) else text[:end].rstrip()

        try:
            try:
                return once(messages)
            except TemplateError:
                return once([message for message in messages if message["role"] != "system"])
        except TemplateError as error:
            raise ModelError(f"{folder}: its chat template refuses the conversation: {first_line(error)}") from error

    return render


class _Generation(Extension):
    """`{% generation %}`, which marks the assistant's words for training: here it is what it encloses."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _sources(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Name -> chat template; files come before what the tokenizer's config says."""
    files = [folder / "chat_template.jinja", *sorted(folder.glob("additional_chat_templates/*.jinja"))]
    found = {
        "default" if file.parent == folder else file.stem: file.read_text(encoding="utf-8")
        for file in files
        if file.is_file()
    }
    said = config.get("chat_template")
    if found or said is None:
        return found
    return {"default": said} if isinstance(said, str) else {entry["name"]: entry["template"] for entry in said}


def _choose(folder: Path, sources: Mapping[str, str], name: str | None) -> str:
    if not sources:
        raise ModelError(f"{folder}: this tokenizer has no chat template; leave apply_chat_template out")
    wanted = "default" if name is None else name
    if wanted not in sources:
        missing = "no default" if name is None else f"no '{name}'"
        raise ModelError(
            f"{folder}: among its chat templates is {missing}; give one's name to apply_chat_template: {', '.join(sorted(sources))}"
        )
    return sources[wanted]


def _text(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token if isinstance(token, str) else None


def _refuse(message: str) -> None:
    raise TemplateError(message)
