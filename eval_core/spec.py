"""What to evaluate: the whole of a user's input, as frozen values with their defaults and meanings.

Everything that can change a bit of a result is a field here with a fixed default, and is part of the
run's identity; nothing of that kind is chosen at run time. The sections `work` and `report` are not part of it:
they say how to go about the work, not what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

DType = Literal["auto", "float32", "bfloat16", "float16", "float64"]


def key(doc: str, default: Any = MISSING) -> Any:
    """A field of the spec with its meaning; without `default` it must be given."""
    return field(default=default, metadata={"doc": doc})


def section(cls: type, doc: str) -> Any:
    """A nested section whose keys all have defaults."""
    return field(default_factory=cls, metadata={"doc": doc})


@dataclass(frozen=True, kw_only=True)
class PerplexityTask:
    """Rolling log-likelihood of whole documents: token_ppl, word_ppl, byte_ppl, bits_per_byte, loss."""

    type: Literal["perplexity"] = key("the kind of task")
    name: str = key("the task's name in every table")
    data: str = key("a JSONL file, relative to the spec")
    text: str = key("the field that holds the document", "text")
    window: int | None = key("tokens of a window; none: max_length", None)
    stride: int | None = key(
        "tokens by which a window moves on; each token is scored once, with at least window - stride + 1 "
        "tokens of context; none: window",
        None,
    )
    bos: Literal["auto", "always", "never"] = key(
        "what the first token is conditioned on. always: the BOS token; auto: that, or EOS where there is none; never doubled "
        "where the text has it. never: nothing, so the first token of a document is not scored",
        "auto",
    )
    limit: int | None = key("the first so many documents only", None)


@dataclass(frozen=True, kw_only=True)
class MultipleChoiceTask:
    """The answer with the highest log-likelihood: acc, acc_norm (per character), acc_bytes."""

    type: Literal["multiple_choice"] = key("the kind of task")
    name: str = key("the task's name in every table")
    data: str = key("a JSONL file, relative to the spec")
    prompt: str = key("the prompt, with {field} for a field of the example")
    choices: str = key("the field that holds the list of answers", "choices")
    answer: str = key("the field that holds the right answer's index, from 0", "answer")
    delimiter: str = key("what stands between prompt and answer", " ")
    num_fewshot: int = key("solved examples before the prompt, drawn by a seed of (task, example)", 0)
    fewshot_data: str | None = key("a JSONL file to draw them from; none: the other examples of `data`", None)
    fewshot_separator: str = key("what stands between solved examples", "\n\n")
    bos: Literal["auto", "always", "never"] = key(
        "whether the BOS token stands before the prompt. auto: as the tokenizer does by itself", "auto"
    )
    limit: int | None = key("the first so many examples only", None)


@dataclass(frozen=True, kw_only=True)
class GenKwargs:
    """How texts are generated, in place of what the task says; none: what the task says."""

    until: tuple[str, ...] | None = key("texts at whose first a text ends", None)
    max_gen_toks: int | None = key("tokens of a text at most", None)
    do_sample: bool | None = key("draw each token, instead of the likeliest", None)
    temperature: float | None = key("by which logits are divided before a token is drawn", None)
    top_k: int | None = key("draw from so many of the likeliest tokens; 0: from all", None)
    top_p: float | None = key("draw from the likeliest tokens that together have this probability", None)


@dataclass(frozen=True, kw_only=True)
class LmEvalTask:
    """A task of the lm-evaluation-harness, scored by its own code; a group or tag stands for all of its tasks."""

    type: Literal["lm_eval"] = key("the kind of task", "lm_eval")
    lm_eval: str = key("the name in the harness's registry, or a task's YAML file, relative to the spec")
    name: str = key("of a single task, which the plan fills in", "")
    include_path: str | None = key("a folder of task YAML files that come before the harness's own", None)
    num_fewshot: int | None = key(
        "solved examples in the prompt, except where a task insists on 0; none: the task's", None
    )
    limit: float | None = key("the first so many documents only; below 1: this part of them", None)
    samples: tuple[int, ...] | None = key("these documents only, by their index", None)
    system_instruction: str | None = key("what stands at the beginning of each prompt", None)
    apply_chat_template: bool | str = key(
        "put the prompt into the tokenizer's chat template; where it has several, into the one of this name", False
    )
    fewshot_as_multiturn: bool | None = key(
        "solved examples are turns of the conversation; none: where there is a chat template", None
    )
    gen_kwargs: GenKwargs = section(GenKwargs, "how texts are generated, in place of what the task says")
    repeat_bos: bool = key(
        "a rolled document that has a BOS token, by its text or its tokenizer, gets a second one, as the harness does",
        False,
    )
    confirm_run_unsafe_code: bool = key(
        "let a task run the code that the model wrote, which is how some are scored", False
    )


Task = PerplexityTask | MultipleChoiceTask | LmEvalTask
TASK_TYPES: Mapping[str, type[PerplexityTask] | type[MultipleChoiceTask] | type[LmEvalTask]] = {
    "perplexity": PerplexityTask,
    "multiple_choice": MultipleChoiceTask,
    "lm_eval": LmEvalTask,
}


@dataclass(frozen=True, kw_only=True)
class Compute:
    """How the model is computed; each of these changed bits when it was measured."""

    mode: Literal["fast", "reference"] = key(
        "fast: requests are sorted, share rows and prefixes, and are padded; the plan fixes how, so that every number of processes "
        "gives the same bits. reference: each request alone in a row and a micro-batch of its own, so that its result depends on "
        "nothing but its tokens",
        "fast",
    )
    device: Literal["cpu", "cuda"] = key("where the model runs", "cpu")
    dtype: DType = key(
        "of weights and activations; auto: bfloat16 where most weights are stored so, else float32. Log-softmax and sums are never "
        "below float32",
        "auto",
    )
    threads: int = key("CPU threads of a process; 1 is also what torchrun gives", 1)
    attention: Literal["blocked", "sdpa", "eager"] = key(
        "the attention implementation: sdpa and eager are those of transformers; blocked is sdpa, but on a CPU rows of 256 tokens and "
        "more that need no mask are computed in blocks by oneDNN, in float32",
        "blocked",
    )
    cpu_products: Literal["onednn", "native"] = key(
        "how a CPU multiplies by the weights of linear layers. onednn: in float32, rounded once to the dtype, by the library that is "
        "fast on any make of CPU; native: as PyTorch does, in float32 by its BLAS, in 16 bits by units of the CPU that few have (AMX, "
        "AVX512-BF16)",
        "onednn",
    )
    head_rows: int = key("positions of a chunk in the language-model head", 192)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """How requests become micro-batches and shards; never by the number of ranks."""

    tokens: int = key("tokens of a micro-batch, padding included", 2048)
    generated_tokens: int = key(
        "tokens of the texts that are generated at the same time: rows of the longest prompt and what it may become",
        8192,
    )
    generated_rounds: int = key(
        "prompts that such a row is given one after the other, about, in a micro-batch: with more, fewer steps are made for few "
        "texts, with fewer, the ranks have more micro-batches to share",
        4,
    )
    share_prefixes: bool = key(
        "answers of one question share a row, in which their common prompt is computed once (where the architecture allows), and "
        "so is what all prompts of a micro-batch begin with, from which texts are generated",
        True,
    )
    pad_to_multiple: int = key("a micro-batch is padded to a multiple of this", 1)
    shard_cost: int = key(
        "FLOPs of a shard, the unit of claim and of commit (one CPU core does about 1e11 a second, a GPU 1e14)",
        200_000_000_000,
    )


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Which part of the work is done twice, to be compared."""

    micro_batches: int | None = key(
        "micro-batches, drawn by the seed, to be replayed and computed in the reference dtype; none: an eighth of them, at "
        "least 2 and at most 4",
        None,
    )


@dataclass(frozen=True, kw_only=True)
class Precision:
    """When the measured error of the run's dtype fails the run."""

    reference: Literal["auto", "float64", "float32"] = key(
        "dtype of the reference; auto: float64 where a float64 copy of the model takes at most reference_memory, "
        "float32 otherwise",
        "auto",
    )
    reference_memory: int = key("bytes that a process may spend on the reference's weights", 32_000_000_000)
    tolerance: float = key("relative error of the summed log-likelihood that is still accepted", 0.001)
    confidence: float = key("of the interval of that error", 0.95)
    max_flips: int | None = key("answers that the reference may change; none: reported, not judged", None)


@dataclass(frozen=True, kw_only=True)
class Work:
    """How the ranks go about the work; not part of the identity."""

    sync_every: int = key("micro-batches between two publications of a rank's running state", 8)
    stall_timeout: float = key("seconds without a sign of life after which a rank counts as stalled", 600.0)
    progress_interval: float = key("seconds between two lines of progress", 10.0)


@dataclass(frozen=True, kw_only=True)
class Report:
    """How uncertain the numbers are said to be; not part of the identity."""

    bootstrap: int = key("resamples for the standard error of what is not a mean", 1000)
    stderr: Literal["concord", "lm_eval"] = key(
        "of the harness's tasks, where a metric is not a mean. concord: this library's seeded bootstrap; lm_eval: the harness's "
        "own, with as many resamples",
        "concord",
    )
    worst_samples: int = key("samples of each kind shown in the report", 10)


@dataclass(frozen=True, kw_only=True)
class EvalSpec:
    """One evaluation."""

    name: str = key("the evaluation's name: letters, digits, '-', '_' and '.'")
    model: str = key("a folder in the Hugging Face layout, relative to the spec, or a hub name as OWNER/MODEL")
    revision: str = key("of a hub model", "main")
    allow_pickle: bool = key("accept weights in pickle files, which can run code when they are loaded", False)
    max_length: int | None = key("tokens the model sees at most; none: what its config says", None)
    seed: int = key("of everything that is drawn", 1234)
    tasks: tuple[Task, ...] = key("what to evaluate")
    compute: Compute = section(Compute, "how the model is computed")
    batch: Batch = section(Batch, "how the work is cut")
    audit: Audit = section(Audit, "what is done twice")
    precision: Precision = section(Precision, "what error fails the run")
    work: Work = section(Work, "how the ranks work")
    report: Report = section(Report, "how the report is made")


_NOT_IDENTITY = {
    "name",
    "model",
    "revision",
    "allow_pickle",
    "work",
    "report",
    "data",
    "fewshot_data",
    "include_path",
}
"""Paths are not part of the identity: the content they lead to is."""


def identity(value: Any) -> Any:
    """The part of a spec that can change a result, as plain JSON.

    Task names stay in it (they seed what is drawn); files and models enter it by digest elsewhere.
    """
    if is_dataclass(value):
        top = isinstance(value, EvalSpec)
        return {
            f.name: identity(getattr(value, f.name))
            for f in fields(value)
            if f.name not in _NOT_IDENTITY or (f.name == "name" and not top)
        }
    if isinstance(value, tuple):
        return [identity(v) for v in value]
    return repr(value) if isinstance(value, float) else value


def to_plain(value: Any) -> Any:
    """The spec as JSON-able mappings and lists, every key given."""
    if is_dataclass(value):
        return {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
    return [to_plain(v) for v in value] if isinstance(value, tuple) else value


def from_plain(cls: Any, data: Any) -> Any:
    """Reverse of `to_plain` for a spec that this library wrote.

    Raises:
        KeyError, TypeError: `data` is something else.
    """
    if cls == Task:
        return from_plain(TASK_TYPES[data["type"]], data)
    if isinstance(data, list):
        member = next(get_args(a)[0] for a in (cls, *get_args(cls)) if get_origin(a) is tuple)
        return tuple(from_plain(member, entry) for entry in data)
    if not is_dataclass(cls):
        return data
    hints = get_type_hints(cls)
    made: Any = cls
    return made(**{name: from_plain(hints[name], value) for name, value in data.items()})


def data_files(task: Task) -> list[str]:
    """The files of examples that `task` reads, as the spec names them; of the harness's tasks only its own code knows."""
    if isinstance(task, LmEvalTask):
        return []
    fewshot = task.fewshot_data if isinstance(task, MultipleChoiceTask) else None
    return [task.data] if fewshot is None else [task.data, fewshot]


def required(f: Field[Any]) -> bool:
    """Whether a spec must give `f`."""
    return f.default is MISSING and f.default_factory is MISSING
