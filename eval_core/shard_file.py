"""A committed shard: what was computed (digested, the same on every machine) and by whom (not part of that)."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from eval_core.canonical import canonical_json, digest_json, little_endian
from eval_core.errors import CorruptFileError
from eval_core.metrics.score import NOT_ASKED, Bools, Float32, Float64, Generated
from eval_core.metrics.states import State, states_from_json, states_to_json
from eval_core.plan.types import Plan

SHARD_FORMAT = 2
SHARDS = "shards"
BAD = "bad"


@dataclass(frozen=True, kw_only=True)
class ShardResult:
    """What a shard's micro-batches gave.

    Attributes:
        plan: digest of the plan.
        shard: its id.
        nll: the scored tokens of the shard's requests, in their order, in nats; float32, or float64 in a
            shard of the reference.
        greedy: bool[requests], whether each is what greedy decoding gives; empty where the plan doesn't ask. Of a prompt
            it says nothing.
        generated: what was written on from the shard's prompts, in the requests' order.
        states: of the items whose requests all lie in this shard; empty in audit shards.
    """

    plan: str
    shard: str
    nll: Float32 | Float64
    states: Mapping[str, State]
    greedy: Bools = field(default_factory=NOT_ASKED.copy)
    generated: tuple[Generated, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "plan": self.plan,
            "shard": self.shard,
            "dtype": self.nll.dtype.name,
            "nll": base64.b64encode(little_endian(self.nll)).decode("ascii"),
            "greedy": "".join("1" if hit else "0" for hit in self.greedy.tolist()),
            "generated": [[list(g.tokens), g.text] for g in self.generated],
            "states": states_to_json(self.states),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ShardResult:
        dtype: Literal["<f4", "<f8"] = "<f8" if data["dtype"] == "float64" else "<f4"
        nll = np.frombuffer(base64.b64decode(data["nll"]), dtype=dtype)
        return cls(
            plan=data["plan"],
            shard=data["shard"],
            nll=nll.astype(nll.dtype.newbyteorder("=")),
            generated=tuple(Generated(tokens=tuple(tokens), text=text) for tokens, text in data["generated"]),
            greedy=np.array([hit == "1" for hit in data["greedy"]], dtype=np.bool_),
            states=states_from_json(data["states"]),
        )


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a shard that was taken over lies in the run that computed it.

    Attributes:
        run: that run's URI, as it was given.
        plan, shard, digest: of the file there: its plan's digest, its id, its result's digest.
        states: its totals there as JSON; with them the rows here give `digest` again.
        key: what the two shards have in common, see `reuse.reuse_key`.
        machine: what its process said it ran on, "" where it left no record.
    """

    run: str
    plan: str
    shard: str
    digest: str
    states: Mapping[str, Any]
    key: str
    machine: str


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Who computed a shard, where and when. Times are Unix seconds. `origin`: in another run, None: in this one."""

    attempt: str
    rank: int
    world_size: int
    host: str
    node: int
    device: str
    started: float
    finished: float
    tokens: int
    origin: Origin | None = None

    @property
    def worker(self) -> str:
        """The process, as one string."""
        return f"{self.attempt}:{self.rank}"

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Provenance:
        origin = Origin(**data["origin"]) if "origin" in data else None
        return cls(**{**data, "origin": origin})


@dataclass(frozen=True, kw_only=True)
class ShardFile:
    """A shard as it lies on storage."""

    result: ShardResult
    digest: str
    provenance: Provenance


def shard_key(shard: str) -> str:
    """Where a shard is committed."""
    return f"{SHARDS}/{shard}.json"


def shard_of_key(key: str) -> str:
    """The shard id of a key that `shard_key` made."""
    return key.removeprefix(f"{SHARDS}/").removesuffix(".json")


def encode_shard(result: ShardResult, provenance: Provenance) -> tuple[bytes, str]:
    """(the file's bytes, the result's digest)."""
    content = result.to_json()
    origin = provenance.to_json()
    digest = digest_json(content)
    head = {
        "format": SHARD_FORMAT,
        "result_digest": digest,
        "provenance_digest": digest_json(origin),
        "result": content,
        "provenance": origin,
    }
    return canonical_json(head), digest


def decode_shard(data: bytes, key: str) -> ShardFile:
    """The shard in `data`, every digest checked; `key` stands in messages.

    Raises:
        CorruptFileError: the file is torn or altered, or was written by another version.
    """
    try:
        content = json.loads(data)
        if content["format"] != SHARD_FORMAT:
            raise CorruptFileError(f"{key}: format {content['format']}, this version reads {SHARD_FORMAT}")
        fits = (
            digest_json(content["result"]) == content["result_digest"]
            and digest_json(content["provenance"]) == content["provenance_digest"]
        )
        if not fits:
            raise CorruptFileError(f"{key}: the content doesn't fit its digest")
        return ShardFile(
            result=ShardResult.from_json(content["result"]),
            digest=content["result_digest"],
            provenance=Provenance.from_json(content["provenance"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFileError(f"{key}: not a whole shard file") from error


def decode_planned(data: bytes, plan: Plan, shard: str) -> ShardFile:
    """The file of `shard`, seen to belong to `plan`.

    Raises:
        CorruptFileError: it is torn, altered, of another plan or of another shard.
    """
    key = shard_key(shard)
    file = decode_shard(data, key)
    if file.result.plan != plan.digest or file.result.shard != shard:
        raise CorruptFileError(f"{key}: belongs to another plan")
    if len(file.result.nll) != (wanted := n_scored_tokens(plan, shard)):
        raise CorruptFileError(f"{key}: has {len(file.result.nll)} tokens, the plan scores {wanted}")
    if len(file.result.greedy) != (wanted := len(plan.shard_requests(shard)) * plan.asks_greedy):
        raise CorruptFileError(
            f"{key}: says of {len(file.result.greedy)} requests whether they are greedy, not of {wanted}"
        )
    if len(file.result.generated) != (wanted := n_prompts(plan, shard)):
        raise CorruptFileError(f"{key}: has {len(file.result.generated)} texts, the plan asks for {wanted}")
    return file


def n_scored_tokens(plan: Plan, shard: str) -> int:
    """Scored tokens of a shard."""
    requests = plan.shard_requests(shard)
    return int(plan.requests.n_scored[requests.start : requests.stop].sum(dtype=np.int64))


def n_prompts(plan: Plan, shard: str) -> int:
    """Prompts of a shard that a text is written on from."""
    requests = plan.shard_requests(shard)
    return int(np.count_nonzero(plan.requests.is_prompt[requests.start : requests.stop]))
