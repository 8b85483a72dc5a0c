"""Chat templates, rendered as transformers renders them, without importing it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from eval_core.errors import ModelError, first_line

ChatTemplate = Callable[..., str]
"""(list of {"role", "content"}, add_generation_prompt=True) -> the prompt; False: up to the end of the last message."""

_MARK = "<<end of the last message>> "
"""Its last space shows whether a template strips what it is given."""


def load_chat_template(folder: Path) -> ChatTemplate:
    """The chat template of the tokenizer in `folder`.

    As the harness does, a template that refuses a system message is given the conversation without it.

    Raises:
        ModelError: the tokenizer has none, or it can't be rendered.
    """
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    source = _source(folder, config)
    if source is None:
        raise ModelError(f"{folder}: this tokenizer has no chat template; leave apply_chat_template out")
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    special = {name: _text(value) for name, value in config.items() if name.endswith("_token") and _text(value)}
    try:
        template = environment.from_string(source)
    except TemplateError as error:
        raise ModelError(f"{folder}: its chat template is broken: {first_line(error)}") from error

    def render(messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        def once(given: list[dict[str, str]]) -> str:
            if add_generation_prompt:
                return template.render(messages=given, add_generation_prompt=True, **special)
            marked = [*given[:-1], given[-1] | {"content": given[-1]["content"] + _MARK}]
            text = template.render(messages=marked, add_generation_prompt=False, **special)
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


def _source(folder: Path, config: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        return next((entry["template"] for entry in template if entry["name"] == "default"), None)
    return template


def _text(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token if isinstance(token, str) else None


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
