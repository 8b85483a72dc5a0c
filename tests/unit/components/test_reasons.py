"""What jobs, pods and events say, as a 1.34 API server lists them, and when it is final."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from components.evaluate.reasons import (
    Assessment,
    Final,
    Trouble,
    assess,
    final_condition,
    final_failure,
    is_being_deleted,
    is_finished,
    lasting,
)

NAME = "concord-0123456789abcdef-1"
PATIENCE = 300.0


def job(*conditions: tuple[str, str], workers: int = 1, **metadata: Any) -> dict[str, Any]:
    """A job whose newest condition is true, and the ones before it not any more, as the operator writes them."""
    listed = [
        {
            "type": kind,
            "status": "True" if (number == len(conditions) - 1 or kind == "Created") else "False",
            "reason": f"PyTorchJob{kind}",
            "message": message,
            "lastTransitionTime": "2026-11-30T12:00:00Z",
            "lastUpdateTime": "2026-11-30T12:00:00Z",
        }
        for number, (kind, message) in enumerate(conditions)
    ]
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": NAME, "uid": "job-uid", "resourceVersion": "7", **metadata},
        "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": workers}}},
        "status": {"conditions": listed, "replicaStatuses": {"Master": {}, "Worker": {}}} if listed else {},
    }


CREATED = ("Created", f"PyTorchJob {NAME} is created.")
RUNNING = ("Running", f"PyTorchJob {NAME} is running.")


def pod(role: str = "worker-0", phase: str = "Running", **status: Any) -> dict[str, Any]:
    """A pod on a node, its container running unless `status` says otherwise."""
    container = {
        "name": "pytorch",
        "image": "docker.io/concord/worker:0.1.0",
        "imageID": "sha256:1",
        "containerID": "containerd://1",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": "2026-11-30T12:00:05Z"}},
        "lastState": {},
    }
    return {
        "metadata": {"name": f"{NAME}-{role}", "uid": f"uid-{role}", "labels": {}},
        "spec": {
            "nodeName": "node-1",
            "terminationGracePeriodSeconds": 30,
            "containers": [
                {"name": "pytorch", "image": "concord/worker:0.1.0", "resources": {"limits": {"memory": "1Gi"}}}
            ],
        },
        "status": {
            "phase": phase,
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-30T12:00:01Z"}],
            "containerStatuses": [container],
            **status,
        },
    }


def terminated(code: int, reason: str = "Error", ident: str = "9", message: str = "") -> dict[str, Any]:
    ended = {
        "exitCode": code,
        "reason": reason,
        "startedAt": "2026-11-30T12:00:05Z",
        "finishedAt": "2026-11-30T12:01:05Z",
        "containerID": f"containerd://{ident}",
    }
    return {"terminated": ended | ({"message": message} if message else {})}


def restarted(code: int, reason: str = "Error", role: str = "worker-0", ident: str = "9") -> dict[str, Any]:
    """A pod whose container has ended so, and runs again."""
    found = pod(role)
    found["status"]["containerStatuses"][0] |= {"restartCount": 1, "lastState": terminated(code, reason, ident)}
    return found


def waiting(word: str, message: str = "", container: str = "pytorch", role: str = "worker-0") -> dict[str, Any]:
    """A pod that can't start a container."""
    found = pod(role, phase="Pending")
    status = {
        "name": container,
        "image": "concord/wroker:0.1.0",
        "restartCount": 0,
        "state": {"waiting": {"reason": word, **({"message": message} if message else {})}},
        "lastState": {},
    }
    if container == "pytorch":
        found["status"]["containerStatuses"] = [status]
    else:
        found["status"]["initContainerStatuses"] = [status]
        found["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "PodInitializing"}}
    return found


def event(
    about: str, reason: str, message: str, kind: str = "Warning", time: str = "2026-11-30T12:00:10Z"
) -> dict[str, Any]:
    return {
        "metadata": {"name": f"{about}.17", "creationTimestamp": "2026-11-30T12:00:00Z"},
        "involvedObject": {"kind": "Pod", "name": about},
        "type": kind,
        "reason": reason,
        "message": message,
        "lastTimestamp": time,
    }


def look(the_job: dict[str, Any] | None, *pods: dict[str, Any], events: tuple[dict[str, Any], ...] = ()) -> Assessment:
    return assess(the_job, pods, events, PATIENCE)


def only(assessment: Assessment) -> Trouble:
    (trouble,) = assessment.troubles
    return trouble


def test_a_job_that_runs_has_no_trouble() -> None:
    found = look(job(CREATED, RUNNING), pod("master-0"), pod())
    assert (found.state, found.phases, found.troubles, found.failures) == ("running", {"Running": 2}, (), ())


@pytest.mark.parametrize(
    ("conditions", "state"),
    [
        ((CREATED,), "waiting"),
        ((CREATED, RUNNING), "running"),
        ((CREATED, RUNNING, ("Restarting", "")), "waiting"),
        ((CREATED, ("Suspended", f"PyTorchJob {NAME} is suspended.")), "queued"),
        ((CREATED, RUNNING, ("Succeeded", "")), "succeeded"),
        ((CREATED, RUNNING, ("Failed", "")), "failed"),
    ],
)
def test_states_follow_the_conditions(conditions: tuple[tuple[str, str], ...], state: str) -> None:
    found = job(*conditions)
    assert look(found, pod("master-0"), pod()).state == state
    assert is_finished(found) is (state in ("succeeded", "failed"))


def test_a_suspended_job_without_pods_is_queued_and_in_no_trouble() -> None:
    """Kueue holds it back for as long as it likes."""
    found = look(job(CREATED, ("Suspended", "")))
    assert (found.state, found.troubles) == ("queued", ())


def test_gated_pods_are_queued_too() -> None:
    gate = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gated"}
    gated = [pod(role, phase="Pending", conditions=[gate], containerStatuses=[]) for role in ("master-0", "worker-0")]
    found = look(job(CREATED), *gated)
    assert (found.state, found.troubles) == ("queued", ())


def test_a_job_that_is_gone_or_going() -> None:
    assert look(None).state == "gone"
    going = job(CREATED, RUNNING, deletionTimestamp="2026-11-30T12:00:00Z")
    assert look(going, pod()).state == "gone"
    assert is_being_deleted(going)
    assert not is_finished(going)


def test_an_operator_that_says_nothing_is_given_a_minute() -> None:
    trouble = only(look(job()))
    assert trouble.grace == 60
    assert "says nothing of the job for 60 s; see that it is running" in trouble.reason


def test_an_operator_that_stopped_halfway_is_noticed() -> None:
    trouble = only(look(job(CREATED, workers=3), pod("master-0")))
    assert "has created 1 of 4 pods" in trouble.reason
    assert trouble.grace == PATIENCE


QUOTA = (
    f'Error creating: pods "{NAME}-worker-0" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, '
    "used: requests.nvidia.com/gpu=8, limited: requests.nvidia.com/gpu=8"
)
RESTRICTED = (
    f'Error creating: pods "{NAME}-worker-0" is forbidden: violates PodSecurity "restricted:latest": '
    'allowPrivilegeEscalation != false (container "init-pytorch" must set securityContext.allowPrivilegeEscalation=false)'
)


@pytest.mark.parametrize(
    ("message", "reason", "grace"),
    [
        (QUOTA, "a quota of the namespace is used up: ", PATIENCE),
        (RESTRICTED, 'the pods are refused: Error creating: pods "concord', 10.0),
        ('Error creating: admission webhook "v.x.io" denied the request: no', "the pods are refused: ", 10.0),
        ("Error creating: Internal error: failed calling webhook: timeout", "a webhook doesn't answer: ", PATIENCE),
    ],
)
def test_pods_that_may_not_be_created(message: str, reason: str, grace: float) -> None:
    found = look(job(CREATED), pod("master-0"), events=(event(NAME, "FailedCreatePod", message),))
    assert found.troubles == look(job(), pod("master-0"), events=(event(NAME, "FailedCreatePod", message),)).troubles
    trouble = only(found)
    assert trouble.reason.startswith(reason)
    assert message in trouble.reason
    assert trouble.grace == grace


def test_an_old_refusal_is_no_trouble_once_the_pods_are_there() -> None:
    refused = event(NAME, "FailedCreatePod", QUOTA)
    assert look(job(CREATED), pod("master-0"), pod(), events=(refused,)).troubles == ()


def test_a_pod_that_fits_nowhere() -> None:
    message = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."
    no = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    found = look(job(CREATED), pod("master-0", phase="Pending", conditions=[no], containerStatuses=[]), pod())
    trouble = only(found)
    assert trouble.reason == f"pod {NAME}-master-0 can't be scheduled: {message}"
    assert trouble.grace == PATIENCE


def test_a_pod_that_no_scheduler_has_seen() -> None:
    unseen = pod("master-0", phase="Pending", conditions=None, containerStatuses=None)
    assert "no scheduler has looked at it" in only(look(job(CREATED), unseen, pod())).reason


@pytest.mark.parametrize("word", ["ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull"])
def test_an_image_that_is_not_there(word: str) -> None:
    found = look(job(CREATED), pod("master-0"), waiting(word, 'failed to resolve "concord/wroker:0.1.0": not found'))
    trouble = only(found)
    assert trouble.reason == (
        f"the image 'concord/wroker:0.1.0' of pod {NAME}-worker-0, container pytorch, can't be pulled: "
        'failed to resolve "concord/wroker:0.1.0": not found'
    )
    assert trouble.grace == PATIENCE
    assert found.phases == {"Running": 1, word: 1}


def test_back_off_and_pulling_again_are_one_trouble() -> None:
    first = only(look(job(CREATED), pod("master-0"), waiting("ErrImagePull")))
    second = only(look(job(CREATED), pod("master-0"), waiting("ImagePullBackOff")))
    assert first.key == second.key


def test_the_operators_init_image_is_named_too() -> None:
    found = look(job(CREATED), pod("master-0"), waiting("ImagePullBackOff", "no route to host", "init-pytorch"))
    assert "container init-pytorch, can't be pulled: no route to host" in only(found).reason


def test_a_name_that_is_no_image_name_needs_no_patience() -> None:
    assert only(look(job(CREATED), pod("master-0"), waiting("InvalidImageName"))).grace == 0


def test_a_secret_that_is_missing() -> None:
    found = look(job(CREATED), pod("master-0"), waiting("CreateContainerConfigError", 'secret "hub" not found'))
    assert 'can\'t start: CreateContainerConfigError: secret "hub" not found' in only(found).reason


def test_a_volume_that_cannot_be_mounted_until_it_can() -> None:
    creating = waiting("ContainerCreating")
    failed = event(creating["metadata"]["name"], "FailedMount", 'MountVolume.SetUp failed for volume "m":\n not found')
    found = look(job(CREATED), pod("master-0"), creating, events=(failed,))
    assert 'can\'t start: FailedMount: MountVolume.SetUp failed for volume "m": not found' in only(found).reason
    pulling = event(creating["metadata"]["name"], "Pulling", "Pulling image", "Normal", "2026-11-30T12:00:20Z")
    assert look(job(CREATED), pod("master-0"), creating, events=(failed, pulling)).troubles == ()


def test_a_long_pull_is_no_trouble() -> None:
    assert look(job(CREATED), pod("master-0"), waiting("ContainerCreating")).troubles == ()


def test_a_lost_master_needs_another_attempt_and_a_lost_worker_does_not() -> None:
    master, worker = pod("master-0"), pod()
    for lost in (master, worker):
        lost["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z"
    found = look(job(CREATED, RUNNING), master, worker)
    trouble = only(found)
    assert found.phases == {"Terminating": 2}
    assert (trouble.again, trouble.grace) == (True, 60.0)
    assert f"pod {NAME}-master-0 is lost: it doesn't end on node node-1" in trouble.reason


def test_a_signal_is_the_infrastructures_however_often() -> None:
    found = look(job(CREATED, RUNNING), pod("master-0"), restarted(137))
    (failure,) = found.failures
    assert failure.describe() == f"pod {NAME}-worker-0 was ended by SIGKILL (exit code 137)"
    assert found.restarts == 1
    many = [copy.copy(failure) for _ in range(5)]
    assert final_failure(many) is None


def test_out_of_memory_is_final_the_second_time_on_one_pod() -> None:
    (first,) = look(job(CREATED, RUNNING), restarted(137, "OOMKilled", ident="1")).failures
    (other,) = look(job(CREATED, RUNNING), restarted(137, "OOMKilled", role="worker-1", ident="2")).failures
    (second,) = look(job(CREATED, RUNNING), restarted(137, "OOMKilled", ident="3")).failures
    assert final_failure([first, other]) is None
    final = final_failure([first, other, second])
    assert final is not None
    assert (
        f"pod {NAME}-worker-0 was OOMKilled at its limit of 1Gi, for the second time; give the pods more"
        in final.reason
    )
    assert not final.usage


def test_both_failures_of_a_pod_that_has_just_failed_again_are_seen() -> None:
    again = restarted(137, "OOMKilled", ident="1")
    again["status"]["containerStatuses"][0]["state"] = terminated(137, "OOMKilled", ident="2")
    failures = look(job(CREATED, RUNNING), again).failures
    assert [failure.restarted for failure in failures] == [True, False]
    assert final_failure(failures) is not None


def test_out_of_memory_without_a_limit_says_so() -> None:
    without = restarted(137, "OOMKilled")
    without["spec"]["containers"][0]["resources"] = {}
    (failure,) = look(job(CREATED, RUNNING), without).failures
    assert failure.describe() == f"pod {NAME}-worker-0 was OOMKilled at the node's memory; it has no limit"


def test_wrong_input_is_final_at_once() -> None:
    failures = look(job(CREATED, RUNNING), restarted(2)).failures
    final = final_failure(failures)
    assert final == Final(
        reason=f"pod {NAME}-worker-0 failed with exit code 2: its input is wrong", usage=True, failure=failures[0]
    )


def test_an_own_error_is_final_the_second_time() -> None:
    (first,) = look(job(CREATED, RUNNING), restarted(1, ident="1")).failures
    (second,) = look(job(CREATED, RUNNING), restarted(1, ident="2")).failures
    assert final_failure([first]) is None
    final = final_failure([first, second])
    assert final is not None
    assert final.reason == f"pod {NAME}-worker-0 failed with exit code 1, for the second time"
    assert final.failure is second


def test_a_command_that_the_image_lacks_is_named() -> None:
    broken = pod(phase="Running")
    message = 'failed to create containerd task: exec: "python": executable file not found in $PATH'
    broken["status"]["containerStatuses"][0]["state"] = terminated(128, "StartError", message=message)
    (failure,) = look(job(CREATED, RUNNING), broken).failures
    assert failure.describe() == f"pod {NAME}-worker-0 couldn't start: {message}"
    assert final_failure([failure]) is None
    assert final_failure([failure, failure]) is not None


def test_an_evicted_pod_is_the_infrastructures() -> None:
    evicted = pod(
        phase="Failed", reason="Evicted", message="The node was low on resource: memory.", containerStatuses=[]
    )
    found = look(job(CREATED, RUNNING), pod("master-0"), evicted)
    (failure,) = found.failures
    assert failure.describe() == f"pod {NAME}-worker-0 failed: Evicted (The node was low on resource: memory.)"
    assert final_failure([failure, failure]) is None


def test_a_container_that_ended_well_is_no_failure() -> None:
    done = pod(phase="Succeeded")
    done["status"]["containerStatuses"][0]["state"] = terminated(0, "Completed")
    assert look(job(CREATED, RUNNING), pod("master-0"), done).failures == ()


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            f"Job {NAME} has failed because it was active longer than specified deadline",
            "the job ran into its deadline of 3600 s; a larger timeout gives it more",
        ),
        (
            f"Job {NAME} has failed because it has reached the specified backoff limit",
            f"the operator gave up after too many restarts; the last failure: pod {NAME}-worker-0 was ended by SIGKILL",
        ),
        ("something new", "the operator says: something new; the last failure: "),
    ],
)
def test_why_the_operator_gave_up(message: str, reason: str) -> None:
    failures = look(job(CREATED, RUNNING), restarted(137)).failures
    failed = look(job(CREATED, RUNNING, ("Failed", message)))
    assert final_condition(failed, failures, 3600).reason.startswith(reason)
    assert final_condition(failed, (), 3600).reason


def test_a_trouble_is_final_when_it_lasts_and_begins_anew_when_it_comes_back() -> None:
    trouble = Trouble(key="t", reason="no", grace=10.0)
    seen, final = lasting([trouble], {}, 100.0)
    assert (seen, final) == ({"t": 100.0}, None)
    seen, final = lasting([trouble], seen, 109.9)
    assert final is None
    assert lasting([trouble], seen, 110.0) == ({"t": 100.0}, Final(reason="no"))
    seen, _ = lasting([], seen, 111.0)
    assert lasting([trouble], seen, 112.0) == ({"t": 112.0}, None)


def test_another_attempt_is_passed_on() -> None:
    _, final = lasting([Trouble(key="t", reason="lost", grace=0.0, again=True)], {}, 0.0)
    assert final == Final(reason="lost", again=True)


@pytest.mark.parametrize("code", [126, 128, 255])
def test_an_exit_code_that_is_no_signals_is_an_own_error(code: int) -> None:
    (failure,) = look(job(CREATED, RUNNING), restarted(code)).failures
    assert failure.describe() == f"pod {NAME}-worker-0 failed with exit code {code}"
    assert final_failure([failure, failure]) is not None
