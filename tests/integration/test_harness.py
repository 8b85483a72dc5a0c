"""The harness's tasks, against the harness itself: the same model, the same task files, compared document by document."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [topics[title] for title in sorted(topics)]

QUESTIONS = [
    {
        "question": f"Which word comes after\n{text[:80]}",
        "choices": ["yes", "no", "per" + text[:3].lower()],
        "label": n % 3,
    }
    for n, text in enumerate(TEXTS[:12])
] + [
    {"question": "Trailing white space  \n ", "choices": ["a", "b  ", " c"], "label": 1},
    {"question": "日本語のテキスト 😀", "choices": ["é", "naïve 😀", "日本"], "label": 2},
    {"question": "An empty answer", "choices": ["", "something"], "label": 0},
    {"question": "Too long: " + TEXTS[3][:3000], "choices": ["one", "two", "three"], "label": 0},
    {"question": "A join in the mid", "choices": ["dle", "st", "night"], "label": 0},
    {"question": "<s>It says BOS itself", "choices": ["x", "y"], "label": 1},
]

TASKS = {
    "traps": """
        output_type: multiple_choice
        doc_to_text: "{{question}}"
        doc_to_choice: "{{choices}}"
        doc_to_target: label
        metric_list:
          - {metric: acc, aggregation: mean, higher_is_better: true}
          - {metric: acc_norm, aggregation: mean, higher_is_better: true}
          - {metric: acc_bytes, aggregation: mean, higher_is_better: true}
          - {metric: exact_match, aggregation: mean, higher_is_better: true}
          - {metric: acc_mutual_info, aggregation: mean, higher_is_better: true}
    """,
    "joined": """
        output_type: multiple_choice
        doc_to_text: "{{question}}"
        doc_to_choice: "{{choices[1:]}}"
        doc_to_target: 0
        target_delimiter: ""
        metric_list:
          - {metric: acc, aggregation: mean, higher_is_better: true}
          - {metric: f1, aggregation: f1, higher_is_better: true}
    """,
    "several_right": """
        output_type: multiple_choice
        doc_to_text: "{{question}}"
        doc_to_choice: "{{choices}}"
        doc_to_target: "{{[0, 1]}}"
        metric_list:
          - {metric: acc, aggregation: mean, higher_is_better: true}
          - {metric: exact_match, aggregation: mean, higher_is_better: true}
    """,
    "shots": """
        output_type: multiple_choice
        fewshot_split: test
        num_fewshot: 2
        description: "Answer these.\\n"
        doc_to_text: "Q: {{question}}\\nA:"
        doc_to_choice: ["one", "two", "three"]
        doc_to_target: label
        metric_list:
          - {metric: acc, aggregation: mean, higher_is_better: true}
          - {metric: brier_score, aggregation: brier_score, higher_is_better: false}
    """,
    "last_word": """
        output_type: loglikelihood
        doc_to_text: "{{question}}"
        doc_to_target: " {{choices[1]}}"
        metric_list:
          - {metric: perplexity, aggregation: perplexity, higher_is_better: false}
          - {metric: acc, aggregation: mean, higher_is_better: true}
    """,
    "doubled": """
        output_type: loglikelihood_rolling
        doc_to_text: ""
        doc_to_target: "{{question}}"
    """,
    "rolling": """
        output_type: loglikelihood_rolling
        doc_to_text: ""
        doc_to_target: "{{question | replace('<s>', '')}}"
        metric_list:
          - {metric: word_perplexity, aggregation: weighted_perplexity, higher_is_better: false}
          - {metric: byte_perplexity, aggregation: weighted_perplexity, higher_is_better: false}
          - {metric: bits_per_byte, aggregation: bits_per_byte, higher_is_better: false}
    """,
    "written": """
        output_type: generate_until
        doc_to_text: "{{question | replace('<s>', '')}}"
        doc_to_target: "{{choices[0]}}"
        generation_kwargs: {until: ["\\n\\n", "er"], max_gen_toks: 24, do_sample: false}
        filter_list:
          - {name: all, filter: [{function: take_first}]}
          - {name: word, filter: [{function: regex, regex_pattern: "([a-z]+)"}, {function: take_first}]}
        metric_list:
          - {metric: exact_match, aggregation: mean, higher_is_better: true, ignore_case: true}
          - {metric: bleu, aggregation: bleu, higher_is_better: true}
    """,
    "drawn": """
        output_type: generate_until
        doc_to_text: "{{question | replace('<s>', '')}}"
        doc_to_target: "{{choices[0]}}"
        generation_kwargs: {until: ["er"], max_gen_toks: 24, do_sample: true, temperature: 0.5}
    """,
    "prefixed": """
        output_type: generate_until
        fewshot_split: test
        num_fewshot: 1
        description: "Answer these."
        doc_to_text: "Q: {{question | replace('<s>', '')}}"
        doc_to_target: "{{choices[0]}}"
        gen_prefix: "The answer:"
        generation_kwargs: {until: ["er"], max_gen_toks: 8, do_sample: false}
    """,
    "blanks": """
        output_type: multiple_choice
        fewshot_split: test
        doc_to_text: label
        doc_to_choice: "{{choices}}"
        doc_to_target: "{{question[:20]}}"
        metric_list:
          - {metric: acc, aggregation: mean, higher_is_better: true}
    """,
    "corpus": """
        output_type: generate_until
        doc_to_text: "{{question[:60] | replace('<s>', '')}}"
        doc_to_target: "{{question[60:120] | replace('<s>', '')}}"
        generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 24, do_sample: false}
        metric_list:
          - {metric: bleu, aggregation: bleu, higher_is_better: true}
          - {metric: chrf, aggregation: chrf, higher_is_better: true}
          - {metric: ter, aggregation: ter, higher_is_better: false}
    """,
    "agreement": """
        output_type: multiple_choice
        doc_to_text: "{{question}}"
        doc_to_choice: ["no", "yes"]
        doc_to_target: "{{label % 2}}"
        metric_list:
          - {metric: mcc, aggregation: matthews_corrcoef, higher_is_better: true}
          - {metric: f1, aggregation: f1, higher_is_better: true}
          - {metric: acc, aggregation: median, higher_is_better: true}
    """,
    "filtered": """
        output_type: loglikelihood
        doc_to_text: "{{question}}"
        doc_to_target: " yes"
        filter_list:
          - {name: first, filter: [{function: take_first}]}
          - {name: second, filter: [{function: take_first}]}
        metric_list:
          - {metric: acc, aggregation: mean, higher_is_better: true}
    """,
}

GROUPS = {
    "both": """
        task: [traps, shots]
        aggregate_metric_list:
          - {metric: acc, aggregation: mean, weight_by_size: true}
    """,
    "pair": """
        task: [joined, agreement]
        aggregate_metric_list:
          - {metric: f1, aggregation: mean, weight_by_size: false}
          - {metric: acc, aggregation: mean, weight_by_size: true}
    """,
    "nested": """
        task: [both, several_right]
        aggregate_metric_list:
          - {metric: acc, aggregation: mean, weight_by_size: false}
          - {metric: brier_score, aggregation: mean, weight_by_size: true}
    """,
}

EVERY = ["pair", "last_word", "rolling", "filtered", "written", "corpus", "nested"]
EVERY_WITH_BOS = [name for name in EVERY if name != "rolling"]
"""Where the tokenizer adds BOS, the harness puts a second one before each rolled document: see `doubled`."""
RESAMPLES = 200

CHAT = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>\n{{ m.content | trim }}{{ eos_token }}\n{% endfor %}"
TEMPLATES = {
    "default": CHAT + "{% if add_generation_prompt %}<assistant>\n{% endif %}",
    "brief": "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{{ m.role[0] }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}a: {% endif %}",
}
TALKED = ["shots", "joined", "last_word", "written", "prefixed", "blanks"]

FLAGS: dict[str, tuple[list[str], dict[str, Any], list[Any]]] = {
    "few": (
        ["shots"],
        {"num_fewshot": 1, "limit": 0.3, "fewshot_random_seed": 7, "system_instruction": "Be brief."},
        ["--num_fewshot", 1, "--limit", 0.3, "--seed", 7, "--system_instruction", "Be brief."],
    ),
    "samples": (
        ["shots"],
        {"samples": {"shots": [1, 4, 7]}},
        ["--samples", '{"shots": [1, 4, 7]}'],
    ),
    "chat": (
        TALKED,
        {"apply_chat_template": True, "fewshot_as_multiturn": True},
        ["--apply_chat_template"],
    ),
    "chat with a system": (
        TALKED,
        {"apply_chat_template": True, "fewshot_as_multiturn": False, "system_instruction": "Be brief."},
        ["--apply_chat_template", "--system_instruction", "Be brief.", "--fewshot_as_multiturn", "false"],
    ),
    "chat by name": (
        TALKED,
        {"apply_chat_template": True, "fewshot_as_multiturn": True, "system_instruction": "Be brief."},
        ["--apply_chat_template", "brief", "--fewshot_as_multiturn", "--system_instruction", "Be brief."],
    ),
    "other generation": (
        ["drawn", "written"],
        {"gen_kwargs": {"until": ["e", "th"], "max_gen_toks": 7, "do_sample": False, "temperature": 0}},
        ["--gen_kwargs", 'until=["e","th"],max_gen_toks=7', "do_sample=False", "temperature=0"],
    ),
}
"""Case -> (tasks, settings of the harness's function, our flags, which are those of its command line)."""


@pytest.fixture(scope="module")
def task_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Task files of the harness over one JSONL file, one of each kind and for each trap."""
    folder = tmp_path_factory.mktemp("tasks")
    data = folder / "questions.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS), encoding="utf-8")
    for name, body in TASKS.items():
        head = f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\ntest_split: test\n"
        lines = [line.removeprefix(" " * 8) for line in body.strip("\n").splitlines()]
        (folder / f"{name}.yaml").write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
    for name, body in GROUPS.items():
        lines = [line.removeprefix(" " * 8) for line in body.strip("\n").splitlines()]
        (folder / f"{name}.yaml").write_text(f"group: {name}\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def bos_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a tokenizer that puts BOS before a text by itself."""
    folder = copy_of(tiny_model, tmp_path_factory.mktemp("bos"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def chat_model(bos_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That model with two chat templates; the default one writes BOS, as the tokenizer does."""
    folder = copy_of(bos_model, tmp_path_factory.mktemp("chat"))
    (folder / "chat_template.jinja").write_text(TEMPLATES["default"], encoding="utf-8")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates/brief.jinja").write_text(TEMPLATES["brief"], encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def brief_model(bos_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That model with the other of the two templates alone."""
    folder = copy_of(bos_model, tmp_path_factory.mktemp("brief"))
    (folder / "chat_template.jinja").write_text(TEMPLATES["brief"], encoding="utf-8")
    return folder


def copy_of(model: Path, folder: Path) -> Path:
    for file in model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.fixture(scope="module")
def theirs(
    tiny_model: Path,
    bos_model: Path,
    chat_model: Path,
    brief_model: Path,
    task_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """Case -> what the harness itself says; one process for all of them."""
    cases: dict[str, dict[str, Any]] = {
        "every": {"model": tiny_model, "tasks": EVERY, "bootstrap_iters": RESAMPLES, "batch_size": 4},
        "every with BOS": {
            "model": bos_model,
            "tasks": EVERY_WITH_BOS,
            "bootstrap_iters": RESAMPLES,
            "batch_size": 4,
        },
        "doubled": {"model": bos_model, "tasks": ["doubled"]},
        "chat by name, as the harness does": {
            "model": chat_model,
            "tasks": ["shots"],
            "apply_chat_template": "brief",
            "fewshot_as_multiturn": True,
        },
    }
    for case, (tasks, settings, _) in FLAGS.items():
        model = brief_model if case == "chat by name" else chat_model if "chat" in case else tiny_model
        cases[case] = {"model": model, "tasks": tasks, **settings}
    folder = tmp_path_factory.mktemp("theirs")
    common = {"include_path": task_folder, "bootstrap_iters": 0}
    text = json.dumps({case: common | settings for case, settings in cases.items()}, default=str)
    (folder / "cases.json").write_text(text, encoding="utf-8")
    command = [sys.executable, ROOT / "tests/run_harness.py", folder / "cases.json", folder / "theirs.json"]
    alone = os.environ | {
        "OMP_NUM_THREADS": "1"
    }  # two threads of a tiny model wait for each other longer than they work
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=1200, env=alone, check=False)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads((folder / "theirs.json").read_text(encoding="utf-8"))
    return said


def samples_of(run: Path, task: str) -> list[dict[str, Any]]:
    """Our samples of a task."""
    lines = (run / f"samples/{task}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def same(ours: Any, theirs: Any) -> bool:
    """Equal, numbers up to what the order of additions in float32 can change."""
    if isinstance(theirs, dict):
        return isinstance(ours, dict) and ours.keys() == theirs.keys() and all(same(ours[k], theirs[k]) for k in theirs)
    if isinstance(theirs, list):
        return isinstance(ours, list) and len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(theirs, float) and isinstance(ours, float):
        return math.isclose(ours, theirs, rel_tol=2e-5, abs_tol=2e-5) or (math.isnan(ours) and math.isnan(theirs))
    if isinstance(theirs, str) and re.fullmatch(r"\[[-+.e\d\s]+\]", theirs):  # an array, as numpy prints it
        return same(*([float(x) for x in text.strip("[]").split()] for text in (ours, theirs)))
    return bool(ours == theirs)


def compare(run: Path, theirs: dict[str, Any], *, stderr: bool = False) -> int:
    """Assert that our results, by `stderr` their standard errors, and samples are the harness's; returns how many samples."""
    ours = json.loads((run / "results.json").read_text(encoding="utf-8"))
    for table in (
        "results",
        "groups",
        "group_subtasks",
        "versions",
        "n-shot",
        "higher_is_better",
        "n-samples",
        "configs",
    ):
        left, right = ours.get(table), theirs.get(table)
        if table in ("results", "groups") and right is not None and not stderr:
            left, right = (
                {t: {k: v for k, v in m.items() if "stderr" not in k} for t, m in x.items()} for x in (left, right)
            )
        if table == "configs":
            left, right = (
                {t: {k: v for k, v in c.items() if k != "metadata"} for t, c in x.items()} for x in (left, right)
            )
        assert same(left, right), f"{table}: {left} and {right}"
    compared = 0
    for task, expected in theirs["samples"].items():
        found = samples_of(run, task)
        assert len(found) == len(expected)
        for mine, other in zip(found, expected, strict=True):
            assert same(mine, other), f"{task}: {mine} and {other}"
            compared += 1
    return compared


@pytest.mark.parametrize("adds_bos", [False, True])
def test_every_kind_of_task_gives_the_harnesss_samples_and_standard_errors(
    concord: Callable,
    tiny_model: Path,
    bos_model: Path,
    task_folder: Path,
    theirs: dict[str, Any],
    tmp_path: Path,
    adds_bos: bool,
) -> None:
    model, names = (bos_model, EVERY_WITH_BOS) if adds_bos else (tiny_model, EVERY)
    said = theirs["every with BOS" if adds_bos else "every"]
    tasks = [{"lm_eval": name, "include_path": str(task_folder)} for name in names]
    report = {"stderr": "lm_eval", "bootstrap": RESAMPLES}
    spec = tmp_path / "every.yaml"
    spec.write_text(json.dumps({"name": "every", "model": str(model), "tasks": tasks, "report": report}), "utf-8")
    done = concord("run", spec, "--nproc", 2, "--run", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert compare(tmp_path / "run", said, stderr=True) == sum(
        len(QUESTIONS) * (2 if name in ("filtered", "written") else 1) for name in said["samples"]
    )
    errors = [v for table in said["results"].values() for name, v in table.items() if "stderr" in name and v != "N/A"]
    assert len(errors) > 20
    assert isinstance(said["groups"]["pair"]["f1_stderr,none"], float)


def test_repeat_bos_gives_the_harnesss_numbers_of_a_rolled_document(
    concord: Callable, bos_model: Path, task_folder: Path, theirs: dict[str, Any], tmp_path: Path
) -> None:
    for repeat in (True, False):
        spec = tmp_path / f"{repeat}.yaml"
        entry = f"{{lm_eval: doubled, include_path: {task_folder}, repeat_bos: {str(repeat).lower()}}}"
        spec.write_text(f"name: bos\nmodel: {bos_model}\ntasks: [{entry}]\n", encoding="utf-8")
        done = concord("run", spec, "--run", tmp_path / f"run-{repeat}")
        assert done.returncode == 0, done.stderr
    compare(tmp_path / "run-True", theirs["doubled"])
    with pytest.raises(AssertionError):
        compare(tmp_path / "run-False", theirs["doubled"])


@pytest.mark.parametrize("case", FLAGS)
def test_the_harnesss_flags_mean_what_they_mean_there(
    concord: Callable,
    tiny_model: Path,
    chat_model: Path,
    task_folder: Path,
    theirs: dict[str, Any],
    tmp_path: Path,
    case: str,
) -> None:
    tasks, _, flags = FLAGS[case]
    model = chat_model if "chat" in case else tiny_model
    given = ["--model", model, "--tasks", ",".join(tasks), "--include_path", task_folder, *flags]
    done = concord("run", *given, "--run", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert compare(tmp_path / "run", theirs[case]) > 2


def test_the_harness_renders_the_default_template_whatever_name_it_is_given(theirs: dict[str, Any]) -> None:
    by_name, default, brief = (
        [sample["arguments"] for sample in theirs[case]["samples"]["shots"]]
        for case in ("chat by name, as the harness does", "chat", "chat by name")
    )
    assert by_name == default != brief


def test_drawn_texts_are_the_same_on_any_number_of_processes(
    concord: Callable, tiny_model: Path, task_folder: Path, tmp_path: Path
) -> None:
    drawn = (task_folder / "written.yaml").read_text(encoding="utf-8")
    drawn = drawn.replace("task: written", "task: drawn")
    drawn = drawn.replace("do_sample: false", "do_sample: true, temperature: 0.9, top_p: 0.95")
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "drawn.yaml").write_text(drawn + "repeats: 3\n", encoding="utf-8")
    flags = ["--model", tiny_model, "--tasks", "drawn", "--include_path", folder]
    for nproc in (1, 3):
        done = concord("run", *flags, "--run", tmp_path / f"run-{nproc}", "--nproc", nproc)
        assert done.returncode == 0, done.stderr
    one, three = (samples_of(tmp_path / f"run-{nproc}", "drawn") for nproc in (1, 3))
    assert one == three
    assert (tmp_path / "run-1/results.json").read_bytes() == (tmp_path / "run-3/results.json").read_bytes()
    texts = [resps for sample in one for resps in sample["resps"]]
    assert all(len(three_texts) == 3 for three_texts in texts)
    assert any(len(set(three_texts)) > 1 for three_texts in texts), "each draw has a seed of its own"


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ("shotz", "did you mean shots"),
        ("broken.yaml", "broken.yaml:3: not valid YAML"),
        ("including.yaml", "base:2: not valid YAML"),
        ("failing.yaml", "can't be loaded: TypeError"),
        ("hub.yaml", "give a local copy"),
        ("code.yaml", "confirm_run_unsafe_code"),
    ],
)
def test_what_cannot_be_planned_is_said_in_one_line(
    concord: Callable, tiny_model: Path, task_folder: Path, tmp_path: Path, tasks: str, said: str
) -> None:
    good = (task_folder / "last_word.yaml").read_text(encoding="utf-8")
    files = {
        "broken.yaml": "task: broken\noutput_type: [loglikelihood\n",
        "including.yaml": "include: base\ntask: including\n",
        "failing.yaml": good.replace("last_word", "failing").replace("{{choices[1]}}", "{{choices[1] + 1}}"),
        "hub.yaml": good.replace("last_word", "hub").replace("dataset_path: json", "dataset_path: nobody/nothing"),
        "code.yaml": good.replace("last_word", "code") + "unsafe_code: true\n",
    }
    if tasks in files:
        (tmp_path / "base").write_text("output_type: loglikelihood\ndoc_to_text: }\n", encoding="utf-8")
        (tmp_path / tasks).write_text(files[tasks], encoding="utf-8")
        tasks = str(tmp_path / tasks)
    flags = ["--model", tiny_model, "--tasks", tasks, "--include_path", task_folder, "--run", tmp_path / "run"]
    done = concord("run", *flags, HF_HUB_OFFLINE="1")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert said in done.stderr.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_scoring_that_fails_names_the_document_and_loses_nothing(
    concord: Callable, tiny_model: Path, task_folder: Path, tmp_path: Path
) -> None:
    plain = (task_folder / "last_word.yaml").read_text(encoding="utf-8")
    task = tmp_path / "tasks/scored.yaml"
    task.parent.mkdir()
    own = plain.replace("last_word", "scored")
    task.write_text(own + "process_results: !function scoring.score\n", encoding="utf-8")
    scoring = task.parent / "scoring.py"
    body = "def score(doc, results):\n    return {{'acc': int(results[0][1]), 'perplexity': {}}}\n"
    scoring.write_text(body.format("results[0][0] if 'join' not in doc['question'] else 1 / 0"), encoding="utf-8")
    flags = ["--model", tiny_model, "--tasks", "scored", "--include_path", task.parent, "--run", tmp_path / "run"]
    failed = concord("run", *flags)
    assert failed.returncode == 1
    assert "Traceback" not in failed.stderr
    assert "task 'scored', document 16: its own scoring fails: ZeroDivisionError" in failed.stderr.splitlines()[-1]
    scoring.write_text(body.format("results[0][0]"), encoding="utf-8")
    mended = concord("run", *flags)
    assert mended.returncode == 0, mended.stderr
    assert "0 of" in mended.stderr, "no answer was computed again"

    other = tmp_path / "other"
    other.mkdir()
    filters = "filter_list:\n  - {name: again, filter: [{function: take_first}]}\n"
    (other / "scored.yaml").write_text(own + filters, encoding="utf-8")
    rescored = concord("rescore", tmp_path / "run", "--include_path", other)
    assert rescored.returncode == 0, rescored.stderr
    results = json.loads((tmp_path / "run/results.json").read_text(encoding="utf-8"))["results"]["scored"]
    assert "acc,again" in results
    assert "acc,none" not in results


def test_a_filter_that_fails_names_the_document_and_rescoring_needs_no_model(
    concord: Callable, tiny_model: Path, task_folder: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    copy_of(tiny_model, model)
    task = tmp_path / "tasks/picked.yaml"
    task.parent.mkdir()
    filters = "filter_list:\n  - {name: own, filter: [{function: custom, filter_fn: !function picking.pick}]}\n"
    plain = (task_folder / "last_word.yaml").read_text(encoding="utf-8").replace("last_word", "picked")
    task.write_text(plain + filters, encoding="utf-8")
    body = "def pick(resps, docs):\n    return [r[0] if {} else r[9] for r, doc in zip(resps, docs)]\n"
    picking = task.parent / "picking.py"
    picking.write_text(body.format("'join' not in doc['question']"), encoding="utf-8")
    flags = ["--model", model, "--tasks", "picked", "--include_path", task.parent, "--run", tmp_path / "run"]
    failed = concord("run", *flags)
    assert failed.returncode == 1
    assert "Traceback" not in failed.stderr
    said = failed.stderr.splitlines()[-1]
    assert "task 'picked', document 16: its own scoring fails: IndexError" in said
    assert "`concord rescore`" in said
    shutil.rmtree(model)
    picking.write_text(body.format("doc"), encoding="utf-8")
    rescored = concord("rescore", tmp_path / "run")
    assert rescored.returncode == 0, rescored.stderr
    results = json.loads((tmp_path / "run/results.json").read_text(encoding="utf-8"))["results"]["picked"]
    assert results["sample_len"] == len(QUESTIONS)
    assert results["acc_stderr,own"] != "N/A"
