"""What a user may say of the pods: one JSON object with Kubernetes' own keys, checked to the last of them."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kubernetes import client

from eval_core.errors import UsageError

Json = dict[str, Any]

_TYPES: Mapping[str, str] = {
    "labels": "dict(str, str)",
    "nodeSelector": "dict(str, str)",
    "tolerations": "list[V1Toleration]",
    "affinity": "V1Affinity",
    "resources": "V1ResourceRequirements",
    "env": "list[V1EnvVar]",
    "envFrom": "list[V1EnvFromSource]",
    "volumes": "list[V1Volume]",
    "volumeMounts": "list[V1VolumeMount]",
    "imagePullSecrets": "list[V1LocalObjectReference]",
    "runtimeClassName": "str",
}
_SCALARS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "text"),
    "datetime": ((str,), "text"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
}
_QUANTITIES = re.compile(r"resources\.(limits|requests)\.")
_OPERATORS_ENV = re.compile(r"CONCORD_RUN|PET_\w+|RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT")

OWN_VOLUMES: Mapping[str, str] = {"tmp": "/tmp", "shm": "/dev/shm"}


@dataclass(frozen=True, kw_only=True)
class PodTemplate:
    """What is added to each pod. Values are as Kubernetes has them.

    Attributes:
        labels: of the job and its pods, such as Kueue's `kueue.x-k8s.io/queue-name`.
        node_selector, tolerations, affinity: where the pods may run.
        resources: requests and limits of the container.
        env, env_from: of the container; `valueFrom` takes secrets.
        volumes, volume_mounts: such as a model's PVC.
        image_pull_secrets: for a private registry.
        runtime_class: `nvidia` on clusters where the GPU runtime isn't the default; "" is the default.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Json, ...] = ()
    affinity: Json = field(default_factory=dict)
    resources: Json = field(default_factory=dict)
    env: tuple[Json, ...] = ()
    env_from: tuple[Json, ...] = ()
    volumes: tuple[Json, ...] = ()
    volume_mounts: tuple[Json, ...] = ()
    image_pull_secrets: tuple[Json, ...] = ()
    runtime_class: str = ""


def parse_pod_template(text: str) -> PodTemplate:
    """The template in `text`.

    Raises:
        UsageError: it is no JSON, or says something that a pod can't say or that Concord says itself; names the key.
    """
    try:
        given = json.loads(text, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"pod_template is not valid JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from error
    if not isinstance(given, dict):
        raise UsageError('pod_template must be a JSON object, such as {"nodeSelector": {"pool": "gpu"}}')
    _check_keys(given, list(_TYPES), "")
    for key, value in given.items():
        _check(value, _TYPES[key], key)
    template = PodTemplate(
        labels=given.get("labels", {}),
        node_selector=given.get("nodeSelector", {}),
        tolerations=tuple(given.get("tolerations", ())),
        affinity=given.get("affinity", {}),
        resources=given.get("resources", {}),
        env=tuple(given.get("env", ())),
        env_from=tuple(given.get("envFrom", ())),
        volumes=tuple(given.get("volumes", ())),
        volume_mounts=tuple(given.get("volumeMounts", ())),
        image_pull_secrets=tuple(given.get("imagePullSecrets", ())),
        runtime_class=given.get("runtimeClassName", ""),
    )
    _check_names(template)
    return template


def _without_duplicates(pairs: list[tuple[str, Any]]) -> Json:
    found: Json = {}
    for key, value in pairs:
        if key in found:
            raise UsageError(f"pod_template: key '{key}' is given twice")
        found[key] = value
    return found


def _check(value: Any, kind: str, path: str) -> None:
    """Compare `value` with `kind`, a type as the client's models write them."""
    if kind == "object":
        return
    if kind in _SCALARS:
        wanted, name = _SCALARS[kind]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        fits = isinstance(value, wanted) and (kind == "bool" or not isinstance(value, bool))
        if not fits and not (number and _QUANTITIES.match(path)):
            raise UsageError(f"pod_template: '{path}' must be {name}, not {json.dumps(value)}")
    elif kind.startswith("list["):
        if not isinstance(value, list):
            raise UsageError(f"pod_template: '{path}' must be a list, not {json.dumps(value)}")
        for place, member in enumerate(value):
            _check(member, kind[len("list[") : -1], f"{path}[{place}]")
    elif kind.startswith("dict("):
        for key, member in _object(value, path).items():
            _check(member, kind.partition(", ")[2][:-1], f"{path}.{key}")
    else:
        _check_model(_object(value, path), getattr(client, kind), path)


def _check_model(value: Json, model: Any, path: str) -> None:
    attributes = {key: attribute for attribute, key in model.attribute_map.items()}
    _check_keys(value, list(attributes), f"{path}.")
    for key, member in value.items():
        _check(member, model.openapi_types[attributes[key]], f"{path}.{key}")
    try:
        model(**{attributes[key]: member for key, member in value.items()})
    except ValueError as error:
        attribute = str(error).partition("`")[2].partition("`")[0]
        key = model.attribute_map.get(attribute, attribute)
        if key in value:
            raise UsageError(f"pod_template: '{path}.{key}': {error}") from error
        raise UsageError(f"pod_template: key '{path}.{key}' is missing") from error


def _check_keys(value: Json, known: list[str], path: str) -> None:
    for key in value:
        if key not in known:
            match = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"; did you mean '{path}{match[0]}'?" if match else f" (known: {', '.join(sorted(known))})"
            raise UsageError(f"pod_template: unknown key '{path}{key}'{hint}")


def _object(value: Any, path: str) -> Json:
    if not isinstance(value, dict):
        raise UsageError(f"pod_template: '{path}' must be an object, not {json.dumps(value)}")
    return value


def _check_names(template: PodTemplate) -> None:
    """Refuse what Concord or the operator sets itself, and mounts of volumes that aren't there."""
    for variable in template.env:
        if _OPERATORS_ENV.fullmatch(variable["name"]):
            raise UsageError(f"pod_template: 'env' can't set {variable['name']}; Concord and the operator do")
    names = [volume["name"] for volume in template.volumes]
    for name in names:
        if name in OWN_VOLUMES or names.count(name) > 1:
            taken = "Concord's own" if name in OWN_VOLUMES else "given twice"
            raise UsageError(f"pod_template: the volume name '{name}' is {taken}; choose another")
    for mount in template.volume_mounts:
        if mount["name"] not in names:
            known = f"known: {', '.join(sorted(names))}" if names else "there are no volumes"
            raise UsageError(
                f"pod_template: 'volumeMounts' names the volume '{mount['name']}', which 'volumes' lacks ({known})"
            )
        if mount["mountPath"].rstrip("/") in OWN_VOLUMES.values():
            raise UsageError(f"pod_template: {mount['mountPath']} is Concord's own mount; choose another mountPath")
