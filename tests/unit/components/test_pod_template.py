"""What a user may say of the pods, and that each mistake is named with its path."""

from __future__ import annotations

import json

import pytest

from components.evaluate.pod_template import PodTemplate, parse_pod_template
from eval_core.errors import UsageError

EVERYTHING = {
    "labels": {"kueue.x-k8s.io/queue-name": "evaluations"},
    "nodeSelector": {"pool": "gpu"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 100,
                    "podAffinityTerm": {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "concord"}},
                    },
                }
            ]
        }
    },
    "resources": {"requests": {"cpu": "4", "memory": "16Gi"}, "limits": {"memory": "64Gi", "nvidia.com/gpu": 1}},
    "env": [
        {"name": "HF_HUB_OFFLINE", "value": "1"},
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token", "optional": True}}},
    ],
    "envFrom": [{"secretRef": {"name": "proxy"}}],
    "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}}],
    "volumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
    "imagePullSecrets": [{"name": "registry"}],
    "runtimeClassName": "nvidia",
}


def test_everything_is_passed_on_as_it_was_given() -> None:
    assert parse_pod_template(json.dumps(EVERYTHING)) == PodTemplate(
        labels=EVERYTHING["labels"],
        node_selector=EVERYTHING["nodeSelector"],
        tolerations=tuple(EVERYTHING["tolerations"]),
        affinity=EVERYTHING["affinity"],
        resources=EVERYTHING["resources"],
        env=tuple(EVERYTHING["env"]),
        env_from=tuple(EVERYTHING["envFrom"]),
        volumes=tuple(EVERYTHING["volumes"]),
        volume_mounts=tuple(EVERYTHING["volumeMounts"]),
        image_pull_secrets=tuple(EVERYTHING["imagePullSecrets"]),
        runtime_class="nvidia",
    )


def test_an_empty_object_asks_for_nothing() -> None:
    assert parse_pod_template("{}") == PodTemplate()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{'a': 1}", "pod_template is not valid JSON: line 1, column 2"),
        ("[]", "must be a JSON object"),
        ('{"nodeSelectors": {}}', "unknown key 'nodeSelectors'; did you mean 'nodeSelector'?"),
        ('{"node_selector": {}}', "unknown key 'node_selector'; did you mean 'nodeSelector'?"),
        ('{"zzz": 1}', "unknown key 'zzz' (known: affinity, env, envFrom, imagePullSecrets, labels, "),
        ('{"nodeSelector": {"a": "b"}, "nodeSelector": {}}', "key 'nodeSelector' is given twice"),
        ('{"nodeSelector": {"pool": 3}}', "'nodeSelector.pool' must be text, not 3"),
        ('{"nodeSelector": ["pool"]}', "'nodeSelector' must be an object, not [\"pool\"]"),
        ('{"tolerations": {"key": "x"}}', "'tolerations' must be a list"),
        (
            '{"tolerations": [{"key": "x", "efect": "NoSchedule"}]}',
            "unknown key 'tolerations[0].efect'; did you mean 'tolerations[0].effect'?",
        ),
        ('{"tolerations": [{"tolerationSeconds": "30"}]}', "'tolerations[0].tolerationSeconds' must be a whole number"),
        ('{"tolerations": [{"tolerationSeconds": true}]}', "'tolerations[0].tolerationSeconds' must be a whole number"),
        ('{"env": [{"value": "1"}]}', "key 'env[0].name' is missing"),
        ('{"env": [{"name": "A", "value": 1}]}', "'env[0].value' must be text, not 1"),
        (
            '{"env": [{"name": "A", "valueFrom": {"secretKeyReff": {}}}]}',
            "did you mean 'env[0].valueFrom.secretKeyRef'?",
        ),
        (
            '{"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}]}',
            "key 'env[0].valueFrom.secretKeyRef.key' is missing",
        ),
        ('{"env": [{"name": "CONCORD_RUN", "value": "x"}]}', "'env' can't set CONCORD_RUN"),
        ('{"env": [{"name": "PET_NNODES", "value": "x"}]}', "'env' can't set PET_NNODES"),
        ('{"resources": {"limit": {}}}', "unknown key 'resources.limit'; did you mean 'resources.limits'?"),
        ('{"resources": {"limits": {"cpu": [1]}}}', "'resources.limits.cpu' must be text, not [1]"),
        ('{"resources": {"limits": {"cpu": true}}}', "'resources.limits.cpu' must be text, not true"),
        (
            '{"volumeMounts": [{"name": "m", "mountPath": "/m"}]}',
            "the volume 'm', which 'volumes' lacks (there are no volumes)",
        ),
        ('{"volumes": [{"name": "tmp", "emptyDir": {}}]}', "the volume name 'tmp' is Concord's own"),
        ('{"volumes": [{"name": "m"}, {"name": "m"}]}', "the volume name 'm' is given twice"),
        (
            '{"volumes": [{"name": "m", "emptyDir": {}}], "volumeMounts": [{"name": "m", "mountPath": "/tmp/"}]}',
            "/tmp/ is Concord's own mount",
        ),
        (
            '{"affinity": {"nodeAffinity": {"required": {}}}}',
            "unknown key 'affinity.nodeAffinity.required' (known: preferredDuring",
        ),
    ],
)
def test_a_mistake_is_one_line_with_the_path(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_pod_template(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
