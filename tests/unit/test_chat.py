"""Chat templates, against what the harness renders with the same tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from lm_eval.models.huggingface import HFLM
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from eval_core.errors import ModelError
from eval_core.tasks.harness.chat import load_chat_template

TEMPLATES = {
    "chatml": "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "special tokens, stripped": "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}",
    "no system": "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}\n{% endfor %}",
    "training marks": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{% set x = 'A' %}{{ x }} {{ m.content }}"
    "{% endgeneration %}{{ x is defined }}{% else %}{{ m.content }}{% endif %}{% if loop.index == 5 %}{% break %}{% endif %}{% endfor %}",
    "JSON": "{{ messages | tojson(separators=(',', ':'), sort_keys=true) }}{{ messages[0] | tojson(indent=2) }}",
    "tools": "{{ tools is none }}{{ documents is none }}{{ tools is defined }}"
    "{% for m in messages %}{{ m.content }}{{ pad_token }}{% endfor %}",
    "blocks": "{% for m in messages %}\n    {%- if loop.first %}\n  first\n    {% endif %}\n{{ m.content }}\n{% endfor %}\n",
}
SAY = {
    "one turn": [("user", "What is 1 < 2 & é?")],
    "system": [("system", "Be brief.\n"), ("user", " Hello ")],
    "solved": [("system", "S"), ("user", "1+1?"), ("assistant", "2"), ("user", "2+2?"), ("assistant", "The answer: ")],
}


def save(folder: Path, template: object = None, **files: str) -> Path:
    """A tokenizer that has `template` in its config, and chat templates in `files`: name -> source."""
    fast = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "?": 2}, unk_token="?"))
    PreTrainedTokenizerFast(tokenizer_object=fast, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    if template is not None:
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        text = json.dumps(config | {"chat_template": template})
        (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    for name, source in files.items():
        file = folder / ("chat_template.jinja" if name == "default" else f"additional_chat_templates/{name}.jinja")
        file.parent.mkdir(exist_ok=True)
        file.write_text(source, encoding="utf-8")
    return folder


def theirs(folder: Path, messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    model = SimpleNamespace(tokenizer=tokenizer, chat_template_args={})
    return HFLM.apply_chat_template(model, messages, add_generation_prompt)


@pytest.mark.parametrize("say", SAY)
@pytest.mark.parametrize("template", TEMPLATES)
def test_prompts_are_those_of_the_harness(template: str, say: str, tmp_path: Path) -> None:
    folder = save(tmp_path, TEMPLATES[template])
    messages = [{"role": role, "content": content} for role, content in SAY[say]]
    render = load_chat_template(folder)
    assert render(messages) == theirs(folder, messages)
    if template != "JSON" and say == "solved":
        ours = render(messages, add_generation_prompt=False)
        assert ours == theirs(folder, messages, add_generation_prompt=False)
        assert ours.endswith(("The answer: ", "The answer:"))


@pytest.mark.parametrize(
    ("template", "files"),
    [
        ([{"name": "default", "template": "D"}, {"name": "rag", "template": "R"}], {}),
        (None, {"default": "D", "rag": "R"}),
        ("config", {"default": "D", "rag": "R"}),
    ],
)
def test_a_template_by_name_is_the_one_that_the_tokenizer_has(
    template: object, files: dict[str, str], tmp_path: Path
) -> None:
    folder = save(tmp_path, template, **files)
    message = [{"role": "user", "content": ""}]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    for name, said in ((None, "D"), ("default", "D"), ("rag", "R")):
        assert load_chat_template(folder, name)(message) == said
        assert HFLM.chat_template(SimpleNamespace(tokenizer=tokenizer), name or True) == said


@pytest.mark.parametrize(
    ("template", "name", "said"),
    [
        (None, None, "has no chat template; leave apply_chat_template out"),
        ("D", "rag", "is no 'rag'; give one's name to apply_chat_template: default"),
        ([{"name": "rag", "template": ""}, {"name": "b", "template": ""}], None, "is no default; .*: b, rag"),
        ("{% for %}", None, "its chat template is broken"),
        ("{{ raise_exception('never') }}", None, "refuses the conversation: never"),
    ],
)
def test_what_cannot_be_rendered_is_said(template: object, name: str | None, said: str, tmp_path: Path) -> None:
    save(tmp_path, template)
    with pytest.raises(ModelError, match=said):
        load_chat_template(tmp_path, name)([{"role": "user", "content": "x"}])


def test_a_template_that_leaves_the_last_message_out_is_refused(tmp_path: Path) -> None:
    render = load_chat_template(save(tmp_path, "{{ messages[0].content }}"))
    with pytest.raises(ModelError, match="leaves out the last message"):
        render([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], add_generation_prompt=False)
