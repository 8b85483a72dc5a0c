"""The plan: what changes its digest and what doesn't, its way to storage and back, and inputs that can't be planned."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from eval_core.errors import ConcordError, CorruptFileError, ModelError, RunMismatchError, SpecError, StorageError
from eval_core.model_files import read_shape, resolve_model, weight_files
from eval_core.plan.files import HEAD_KEY, load_plan, model_folder, save_plan
from eval_core.plan.types import Plan, parse_shard_id, shard_id
from eval_core.storage import Store
from eval_core.tokenizer import load_tokenizer

PlanIn = Callable[..., Plan]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "run"))


def requests_of(plan: Plan) -> list[tuple[list[int], int]]:
    """(tokens, number scored) of each unique request."""
    bounds = itertools.pairwise(plan.requests.offsets.tolist())
    return [
        (plan.requests.tokens[a:b].tolist(), int(n)) for (a, b), n in zip(bounds, plan.requests.n_scored, strict=True)
    ]


# --- the digest


def test_the_digest_is_the_same_when_built_again(inputs: Path, plan_in: PlanIn) -> None:
    one, other = plan_in(inputs), plan_in(inputs)
    assert one.identity == other.identity
    assert one.digest == other.digest


def test_the_digest_does_not_depend_on_the_folder(
    write_inputs: Callable, plan: Plan, plan_in: PlanIn, tmp_path: Path
) -> None:
    other = plan_in(write_inputs(tmp_path / "elsewhere"))
    assert other.locations != plan.locations
    assert other.digest == plan.digest


@pytest.mark.parametrize(
    "change",
    [
        ("name: tiny", "name: renamed"),
        ("report: {bootstrap: 20}", "report: {bootstrap: 30, worst_samples: 1}"),
        ("report:", "work: {sync_every: 1, stall_timeout: 5, progress_interval: 1}\nreport:"),
        ("model: model", "model: model\nrevision: other"),
        ("model: model", "model: model\nallow_pickle: true"),
    ],
)
def test_the_digest_does_not_depend_on_how_the_work_is_done(
    change: tuple[str, str], plan: Plan, inputs: Path, plan_in: PlanIn
) -> None:
    assert plan_in(inputs, change).digest == plan.digest


def test_the_digest_does_not_depend_on_the_names_of_the_files(plan: Plan, inputs: Path, plan_in: PlanIn) -> None:
    (inputs / "docs.jsonl").rename(inputs / "other.jsonl")
    (inputs / "model").rename(inputs / "moved")
    assert plan_in(inputs, ("docs.jsonl", "other.jsonl"), ("model: model", "model: moved")).digest == plan.digest


@pytest.mark.parametrize(
    "change",
    [
        ("batch: {tokens: 96", "batch: {tokens: 97"),
        ("shard_cost: 20000", "shard_cost: 20001"),
        ("name: tiny", "name: tiny\nseed: 5"),
        ("name: tiny", "name: tiny\ncompute: {dtype: bfloat16}"),
        ("name: tiny", "name: tiny\ncompute: {threads: 2}"),
        ("name: tiny", "name: tiny\nmax_length: 60"),
        ("name: quiz", "name: quizzes"),
        ("stride: 16", "stride: 15"),
        ("micro_batches: 3", "micro_batches: 2"),
        ("name: tiny", "name: tiny\nprecision: {tolerance: 0.5}"),
    ],
)
def test_the_digest_changes_with_the_spec(change: tuple[str, str], plan: Plan, inputs: Path, plan_in: PlanIn) -> None:
    assert plan_in(inputs, change).digest != plan.digest


def change_a_byte_of_a_weight(folder: Path) -> None:
    path = folder / "model" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def change_the_config(folder: Path) -> None:
    path = folder / "model" / "config.json"
    path.write_text(path.read_text().replace("}", ', "rope_theta": 5}'))


def change_the_tokenizer(folder: Path) -> None:
    path = folder / "model" / "tokenizer.json"
    path.write_text(path.read_text() + "\n")


def change_the_special_tokens(folder: Path) -> None:
    (folder / "model" / "special_tokens_map.json").write_text("{}")


def change_a_field_that_is_not_used(folder: Path) -> None:
    path = folder / "docs.jsonl"
    path.write_text(path.read_text().replace("}", ', "id": 1}', 1))


def change_a_document(folder: Path) -> None:
    path = folder / "docs.jsonl"
    path.write_text(path.read_text().replace("words", "wards", 1))


@pytest.mark.parametrize(
    "change",
    [
        change_a_byte_of_a_weight,
        change_the_config,
        change_the_tokenizer,
        change_the_special_tokens,
        change_a_field_that_is_not_used,
        change_a_document,
    ],
)
def test_the_digest_changes_with_the_content(
    change: Callable[[Path], None], plan: Plan, inputs: Path, plan_in: PlanIn
) -> None:
    change(inputs)
    assert plan_in(inputs).digest != plan.digest


# --- the content


def test_micro_batches_hold_all_requests_within_the_budget(plan: Plan) -> None:
    inputs = np.diff(plan.requests.offsets) - 1
    first = plan.micro_batches.first_request.tolist()
    assert (first[0], first[-1]) == (0, len(plan.requests))
    for (a, b), length in zip(itertools.pairwise(first), plan.micro_batches.length, strict=True):
        assert inputs[a:b].max() <= length <= 64
        assert (b - a) * length <= 96 or b - a == 1


def test_padding_never_goes_beyond_max_length(inputs: Path, plan_in: PlanIn) -> None:
    plan = plan_in(
        inputs, ("name: tiny", "name: tiny\nmax_length: 30"), ("tokens: 96,", "tokens: 96, pad_to_multiple: 7,")
    )
    assert plan.micro_batches.length.max() == 30


def test_every_request_has_context_and_fits(plan: Plan) -> None:
    assert all(1 <= n < len(tokens) <= 65 for tokens, n in requests_of(plan))


def test_requests_are_unique_and_links_lead_to_what_was_asked(plan: Plan) -> None:
    unique = requests_of(plan)
    assert len({(tuple(tokens), n) for tokens, n in unique}) == len(unique)
    tokenizer = load_tokenizer(model_folder(plan))
    for item, example in enumerate(plan.items.example.tolist()):
        if plan.examples.task[example] == 1:
            links = plan.items.link_request[plan.items.link_offsets[item] : plan.items.link_offsets[item + 1]]
            prompt = plan.examples.prompts[example]
            for link, answer in zip(links, json.loads(plan.examples.targets[example]), strict=True):
                tokens, n_scored = unique[link]
                assert tokenizer.fast.decode(tokens) == f"{prompt} {answer}"
                assert tokenizer.fast.decode(tokens[-n_scored:]) == f" {answer}"


def test_duplicates_are_computed_once_and_counted_for_each(inputs: Path, plan_in: PlanIn) -> None:
    before = plan_in(inputs)
    with (inputs / "quiz.jsonl").open("a") as stream:
        stream.write((inputs / "quiz.jsonl").read_text().splitlines()[0] + "\n")
    plan = plan_in(inputs)
    assert len(plan.requests) == len(before.requests)
    assert plan.n_requested == before.n_requested + 2
    assert len(plan.items) == len(before.items) + 1
    questions = np.flatnonzero(plan.examples.task[plan.items.example] == 1)
    first, last = (plan.items.link_offsets[questions[i]] for i in (0, -1))
    assert plan.items.link_request[first : first + 2].tolist() == plan.items.link_request[last : last + 2].tolist()


def test_the_items_of_a_document_are_its_windows(plan: Plan) -> None:
    windows = np.bincount(plan.items.example[plan.examples.task[plan.items.example] == 0])
    assert windows.max() > 1
    assert np.bincount(plan.items.example, weights=plan.items.first).tolist() == [1.0] * len(plan.examples)


SPLIT = ("tokens: 96, shard_cost: 20000", "tokens: 20, shard_cost: 1")
WHOLE = ("shard_cost: 20000", "shard_cost: 1e12")


@pytest.mark.parametrize(("change", "some_span"), [(WHOLE, False), (SPLIT, True)])
def test_items_are_parted_by_their_home(
    change: tuple[str, str], some_span: bool, inputs: Path, plan_in: PlanIn
) -> None:
    plan = plan_in(inputs, change)
    parts = [plan.items_of(shard).tolist() for shard in range(-1, plan.n_shards)]
    assert sorted(itertools.chain(*parts)) == list(range(len(plan.items)))
    assert bool(parts[0]) == some_span
    for shard, items in zip(range(-1, plan.n_shards), parts, strict=True):
        for item in items:
            links = plan.items.link_request[plan.items.link_offsets[item] : plan.items.link_offsets[item + 1]]
            homes = {
                s for s in range(plan.n_shards) for link in links if link in plan.shard_requests(shard_id("main", s))
            }
            assert (homes == {shard}) if shard >= 0 else len(homes) > 1
            assert plan.last_request[item] == max(links)


def test_main_shards_cover_the_requests_and_audits_are_micro_batches(plan: Plan) -> None:
    shards = plan.shard_ids()
    main = [s for s in shards if s.startswith("main/")]
    assert len(set(shards)) == len(shards) == plan.n_shards + 3 * 3
    assert [r for s in main for r in plan.shard_requests(s)] == list(range(len(plan.requests)))
    assert sum(map(plan.shard_cost, main)) == plan.micro_batches.cost.sum()
    for kind, batch in itertools.product(("replay", "alone", "reference"), plan.audited.tolist()):
        assert list(plan.shard_batches(shard_id(kind, batch))) == [batch]
        whole, taken = plan.shard_requests(shard_id("replay", batch)), plan.shard_requests(shard_id(kind, batch))
        assert taken[0] == whole[0]
        assert kind == "alone" or taken == whole
        if kind == "alone":
            inputs = (np.diff(plan.requests.offsets) - 1)[whole.start : whole.stop]
            most = plan.micro_batches.tokens[batch]
            assert inputs[: len(taken)].sum() <= most or len(taken) == 1
            assert len(taken) == len(whole) or inputs[: len(taken) + 1].sum() > most
        assert batch in plan.shard_batches(shard_id("main", int(plan.main_shard_of_batch[batch])))


@pytest.mark.parametrize("shard", ["main", "main/", "other/000001", "main/-1", "000001", "main/0/1"])
def test_what_is_no_shard_id(shard: str) -> None:
    with pytest.raises(ConcordError, match="is no shard id"):
        parse_shard_id(shard)


def test_a_shard_id_and_back() -> None:
    assert shard_id("replay", 12) == "replay/000012"
    assert parse_shard_id("replay/000012") == ("replay", 12)
    assert parse_shard_id(shard_id("main", 12_345_678)) == ("main", 12_345_678)


@pytest.mark.parametrize(("stored", "dtype"), [("F32", "float32"), ("BF16", "bfloat16"), ("F16", "float32")])
def test_the_dtype_follows_the_weights(stored: str, dtype: str, inputs: Path, plan_in: PlanIn) -> None:
    path = inputs / "model" / "model.safetensors"
    header, size = {}, 0
    for name, values in load_file(path).items():
        stop = size + values.size * (4 if stored == "F32" else 2)
        header[name] = {"dtype": stored, "shape": list(values.shape), "data_offsets": [size, stop]}
        size = stop
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(size))
    assert plan_in(inputs).spec.compute.dtype == dtype
    explicit = plan_in(inputs, ("name: tiny", "name: tiny\ncompute: {dtype: float64}"))
    assert explicit.spec.compute.dtype == "float64"


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("{}", "float64"),
        ("{reference: float32}", "float32"),
        ("{reference_memory: 10367}", "float32"),  # the model has 1296 parameters of 8 bytes
        ("{reference_memory: 10368}", "float64"),
    ],
)
def test_dtype_of_the_reference(precision: str, dtype: str, inputs: Path, plan_in: PlanIn) -> None:
    assert plan_in(inputs, ("name: tiny", f"name: tiny\nprecision: {precision}")).reference_dtype == dtype


# --- storage


def test_a_plan_survives_storage(plan: Plan, store: Store) -> None:
    assert save_plan(plan, store)
    loaded = load_plan(store)
    assert loaded.identity == plan.identity
    assert (loaded.spec, loaded.n_requested, loaded.locations) == (plan.spec, plan.n_requested, plan.locations)
    assert loaded.examples.prompts == plan.examples.prompts


@pytest.mark.parametrize(
    "prompt", [r"two\nlines\t", "naïve 漢字", "😀", r"\U0001F600", r"\x7f", r"\x85\u2028", r"\"'\\", r"\x1b", "# : {{"]
)
def test_a_plan_survives_storage_whatever_its_prompt_says(
    prompt: str, inputs: Path, plan_in: PlanIn, store: Store
) -> None:
    plan = plan_in(inputs, ("Q: {question}", prompt + "{question}"))
    save_plan(plan, store)
    assert load_plan(store).digest == plan.digest


def test_saving_again_changes_nothing(plan: Plan, store: Store) -> None:
    save_plan(plan, store)
    before = {key: store.get(key) for key in store.list("plan")}
    assert save_plan(plan, store) is False
    assert {key: store.get(key) for key in store.list("plan")} == before


def test_another_plan_is_refused_with_both_digests(plan: Plan, inputs: Path, plan_in: PlanIn, store: Store) -> None:
    save_plan(plan, store)
    other = plan_in(inputs, ("tokens: 96", "tokens: 64"))
    with pytest.raises(RunMismatchError) as caught:
        save_plan(other, store)
    assert plan.digest[:16] in str(caught.value)
    assert other.digest[:16] in str(caught.value)
    assert load_plan(store).digest == plan.digest


def test_a_run_without_a_plan(store: Store) -> None:
    with pytest.raises(StorageError, match="make the plan first: concord plan SPEC --run URI"):
        load_plan(store)


def test_a_plan_of_another_format_is_refused(plan: Plan, store: Store) -> None:
    save_plan(plan, store)
    head = json.loads(store.require(HEAD_KEY, ""))
    store.put(HEAD_KEY, json.dumps(head | {"format": 99}).encode())
    with pytest.raises(RunMismatchError, match="the plan has format 99, this version reads 6"):
        load_plan(store)


def column_key(plan: Plan, name: str) -> str:
    return f"plan/{plan.digest[:16]}/{name}.parquet"


COLUMNS = [
    "requests.tokens",
    "micro_batches.first_request",
    "items.link_request",
    "examples.gold",
    "examples.documents",
]


@pytest.mark.parametrize("column", COLUMNS)
def test_an_altered_column_is_detected(column: str, plan: Plan, store: Store) -> None:
    save_plan(plan, store)
    key = column_key(plan, column)
    table = pq.read_table(io.BytesIO(store.require(key, "")))
    values = table["value"].to_pylist()
    values[-1] = values[-1] + ("x" if isinstance(values[-1], str) else 1)
    sink = io.BytesIO()
    pq.write_table(pa.table({"value": pa.array(values, type=table.schema[0].type)}), sink)
    store.put(key, sink.getvalue())
    with pytest.raises(CorruptFileError, match=f"the plan's content has digest .*, its head says {plan.digest[:16]}"):
        load_plan(store)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet at all"])
def test_a_torn_column_is_detected(content: bytes, plan: Plan, store: Store) -> None:
    save_plan(plan, store)
    store.put(column_key(plan, "requests.tokens"), content)
    with pytest.raises(CorruptFileError, match=r"requests\.tokens\.parquet: damaged"):
        load_plan(store)


def test_a_missing_column_is_named(plan: Plan, store: Store) -> None:
    save_plan(plan, store)
    store.delete(column_key(plan, "requests.tokens"))
    with pytest.raises(StorageError, match=r"requests\.tokens\.parquet: the plan is not whole; start a new run"):
        load_plan(store)


@pytest.fixture(scope="module")
def saved(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, str]:
    """A run that holds a plan, and the plan's digest."""
    store = Store(str(tmp_path_factory.mktemp("saved") / "run"))
    save_plan(plan, store)
    return store, plan.digest


@pytest.mark.parametrize(
    ("name", "errors"),
    [("requests.tokens", CorruptFileError), ("examples.documents", CorruptFileError), (None, ConcordError)],
    ids=["numbers", "texts", "head"],
)
@settings(max_examples=40)
@given(data=st.data())
def test_a_flipped_byte_of_a_plan_is_detected_or_harmless(
    name: str | None, errors: type[ConcordError], data: st.DataObject, saved: tuple[Store, str]
) -> None:
    store, digest = saved
    key = f"plan/{digest[:16]}/{name}.parquet" if name else HEAD_KEY
    intact = store.require(key, "")
    flipped = bytearray(intact)
    flipped[data.draw(st.integers(0, len(intact) - 1), "at")] ^= data.draw(st.integers(1, 255), "mask")
    store.put(key, bytes(flipped))
    try:
        with contextlib.suppress(errors):
            assert load_plan(store).digest == digest
    finally:
        store.put(key, intact)


# --- models that can't be used


def rewrite_config(folder: Path, **changes: Any) -> None:
    path = folder / "model" / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


def refusal(folder: Path, plan_in: PlanIn, *changes: tuple[str, str], kind: type[ConcordError] = ModelError) -> str:
    with pytest.raises(kind) as caught:
        plan_in(folder, *changes)
    return str(caught.value)


def test_config_and_weights_must_agree_on_the_vocabulary(inputs: Path, plan_in: PlanIn) -> None:
    rewrite_config(inputs, vocab_size=400)
    message = refusal(inputs, plan_in)
    assert "config.json says vocab_size 400, the weights have 320 embeddings" in message


def test_a_token_beyond_the_embeddings(inputs: Path, plan_in: PlanIn) -> None:
    rewrite_config(inputs, vocab_size=100)
    weights = load_file(inputs / "model" / "model.safetensors")
    name = "model.embed_tokens.weight"
    save_file(weights | {name: weights[name][:100]}, inputs / "model" / "model.safetensors")
    message = refusal(inputs, plan_in)
    assert "the tokenizer gives token id " in message
    assert "the weights have 100 embeddings" in message


def test_a_model_folder_that_is_not_there(inputs: Path, plan_in: PlanIn) -> None:
    message = refusal(inputs, plan_in, ("model: model", "model: ./nowhere"))
    assert "model './nowhere': there is no folder" in message


def test_a_hub_name_that_cannot_be_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def offline(*_: Any, **__: Any) -> None:
        raise OSError("no network\nand more lines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(
        ModelError, match=r"can't be fetched from the hub \(no network\); give the path of a local copy"
    ):
        resolve_model("owner/model", "main", tmp_path)


def test_pickled_weights_need_consent(inputs: Path, plan_in: PlanIn) -> None:
    (inputs / "model" / "model.safetensors").rename(inputs / "model" / "pytorch_model.bin")
    assert "only pickle weights (pytorch_model.bin)" in refusal(inputs, plan_in)
    consent = ("name: tiny", "name: tiny\nallow_pickle: true")
    assert "pytorch_model.bin" in plan_in(inputs, consent).model["files"]


def test_safetensors_come_before_pickles(inputs: Path) -> None:
    (inputs / "model" / "pytorch_model.bin").write_bytes(b"anything")
    for allow_pickle in (True, False):
        names = [f.name for f in weight_files(inputs / "model", allow_pickle=allow_pickle)]
        assert names == ["model.safetensors"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.safetensors", "no weights here (no *.safetensors)"),
        ("config.json", "no config.json, so this is no model folder"),
        ("tokenizer.json", "no tokenizer.json; load the tokenizer with transformers (AutoTokenizer)"),
    ],
)
def test_a_file_of_the_model_is_missing(name: str, message: str, inputs: Path, plan_in: PlanIn) -> None:
    (inputs / "model" / name).unlink()
    assert message in refusal(inputs, plan_in)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_file_of_the_model_is_torn(name: str, inputs: Path, plan_in: PlanIn) -> None:
    path = inputs / "model" / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert name in refusal(inputs, plan_in)


@pytest.mark.parametrize("missing", ["hidden_size", "num_hidden_layers", "vocab_size"])
def test_a_config_without_a_size(missing: str, inputs: Path, plan_in: PlanIn) -> None:
    rewrite_config(inputs, **{missing: None})
    assert "hidden_size, num_hidden_layers or vocab_size is missing" in refusal(inputs, plan_in)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("name: tiny", "name: tiny\nmax_length: 65"), "max_length 65 is more than the model's 64 positions"),
        (("window: 24", "window: 65"), "task 'docs': window 65 is more than max_length 64"),
        (("window: 24, stride: 16", "stride: 65"), "task 'docs': stride 65 is more than the window, 64"),
    ],
)
def test_lengths_that_the_model_does_not_have(
    change: tuple[str, str], message: str, inputs: Path, plan_in: PlanIn
) -> None:
    assert message in refusal(inputs, plan_in, change, kind=SpecError)


def test_a_model_that_does_not_say_its_positions(inputs: Path, plan_in: PlanIn) -> None:
    rewrite_config(inputs, max_position_embeddings=None)
    assert "give `max_length` in the spec" in refusal(inputs, plan_in, kind=SpecError)
    assert plan_in(inputs, ("name: tiny", "name: tiny\nmax_length: 50")).model["max_length"] == 50


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        ({"hidden_size": 4, "num_hidden_layers": 1, "vocab_size": 320, "max_position_embeddings": 9}, 9),
        ({"n_embd": 4, "n_layer": 1, "vocab_size": 320, "n_positions": 9}, 9),
        ({"text_config": {"d_model": 4, "num_layers": 1, "vocab_size": 320, "max_seq_len": 9}}, 9),
        ({"hidden_size": 4, "num_hidden_layers": 1, "vocab_size": 320}, None),
    ],
)
def test_sizes_under_their_several_names(config: dict[str, Any], positions: int | None, inputs: Path) -> None:
    folder = inputs / "model"
    (folder / "config.json").write_text(json.dumps(config))
    shape = read_shape(folder, [folder / "model.safetensors"])
    assert (shape.hidden_size, shape.num_layers, shape.vocab_size, shape.max_positions) == (4, 1, 320, positions)
    assert (shape.body_parameters, shape.total_parameters) == (16, 1296)


# --- the tokenizer


@pytest.mark.parametrize(
    ("config", "bos", "eos"),
    [
        ({"bos_token": "<s>", "eos_token": {"content": "</s>"}}, 0, 1),
        ({"bos_token": None, "eos_token": "</s>"}, None, 1),
        ({"bos_token": "<unheard of>"}, None, None),
        ({}, None, None),
    ],
)
def test_special_tokens_of_the_config(config: dict[str, Any], bos: int | None, eos: int | None, inputs: Path) -> None:
    (inputs / "model" / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(inputs / "model")
    assert (tokenizer.bos, tokenizer.eos, tokenizer.adds_bos) == (bos, eos, False)
    assert tokenizer.vocab_size() == 320


def test_special_tokens_may_stand_in_their_own_file(inputs: Path) -> None:
    os.rename(inputs / "model" / "tokenizer_config.json", inputs / "model" / "special_tokens_map.json")
    tokenizer = load_tokenizer(inputs / "model")
    assert (tokenizer.bos, tokenizer.eos) == (0, 1)


@pytest.mark.parametrize(("said", "adds"), [(None, True), (True, True), (False, False)])
def test_whether_a_tokenizer_adds_bos_by_itself(said: bool | None, adds: bool, inputs: Path) -> None:
    path = inputs / "model" / "tokenizer.json"
    definition = json.loads(path.read_text())
    definition["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
    }
    path.write_text(json.dumps(definition))
    config = {"bos_token": "<s>"} | ({} if said is None else {"add_bos_token": said})
    (inputs / "model" / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(inputs / "model")
    assert tokenizer.adds_bos is adds
    assert tokenizer.encode_batch(["a"])[0][0] != 0


def test_truncation_and_padding_of_the_tokenizer_file_are_off(inputs: Path) -> None:
    path = inputs / "model" / "tokenizer.json"
    plain = load_tokenizer(inputs / "model").encode_batch(["a text", "a much longer text"])
    fast = load_tokenizer(inputs / "model").fast
    fast.enable_truncation(2)
    fast.enable_padding(length=50)
    fast.save(str(path))
    assert load_tokenizer(inputs / "model").encode_batch(["a text", "a much longer text"]) == plain
