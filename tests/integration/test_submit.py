"""The submitter as CI calls it: a process of its own against an HTTP server that behaves, and misbehaves, as the backend does."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kfp
import pytest
import yaml
from kfp_fake import FakeKfp, Moment, failing, make_certificates, succeeding, terminated
from kfp_server_api import V2beta1Run

from eval_core.reduce import load_reduction
from eval_core.storage import Store
from pipelines.variants import compiled_file

ROOT = Path(__file__).resolve().parents[2]
CREATE = ("POST", "/apis/v2beta1/runs")
LIST = ("GET", "/apis/v2beta1/runs")

SPEC = """
name: mine
model: /models/mine
tasks:
  - {name: notes, type: perplexity, data: s3://bucket/notes.jsonl}
"""


@pytest.fixture
def fake() -> Iterator[FakeKfp]:
    with FakeKfp().running() as server:
        yield server


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(SPEC)
    return path


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "pipelines.cli", *map(str, arguments)]


def environment(**changes: str) -> dict[str, str]:
    """Ours, without what could lead to a real server; the run's storage is one that refuses at once."""
    mine = ("KF_PIPELINES", "CONCORD", "AWS_", "REQUESTS_CA")
    storage = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    return {name: value for name, value in os.environ.items() if not name.startswith(mine)} | storage | changes


def call(*arguments: object, timeout: float = 120, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment(**changes),
        cwd=ROOT,
        check=False,
    )


def submit(fake: FakeKfp, spec: Path, *more: object, **changes: str) -> subprocess.CompletedProcess[str]:
    return call("submit", "--host", fake.url, "--spec", spec, "--run", "s3://bucket/runs/mine", *more, **changes)


def one_error(done: subprocess.CompletedProcess[str]) -> str:
    """The one line for the user's mistake, and no traceback."""
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    return errors[0]


def test_a_good_run(fake: FakeKfp, spec: Path) -> None:
    done = submit(fake, spec, "--workers", 4, "--set", "timeout=7200", "--name", "nightly")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    (run,) = fake.runs.values()
    assert f"{fake.url}/#/runs/details/{run['run_id']}" in done.stderr
    lines = [line.split()[1:] for line in done.stderr.splitlines() if line.startswith("0:0")]
    assert lines == [
        ["shard-data", "pending"],
        ["run", "running"],
        ["shard-data", "running"],
        ["shard-data", "succeeded"],
        ["evaluate", "running"],
        ["evaluate", "succeeded"],
        ["verify-precision", "succeeded"],
        ["generate-report", "succeeded"],
        ["run", "succeeded"],
    ]
    assert run["display_name"] == "nightly"
    assert run["runtime_config"]["parameters"] == {
        "spec": SPEC,
        "run": "s3://bucket/runs/mine",
        "workers": 4,
        "timeout": 7200,
    }
    spec_document, platform = yaml.safe_load_all(compiled_file("s3").read_text())
    assert run["pipeline_spec"] == {"pipeline_spec": spec_document, "platform_spec": platform}


def test_the_readmes_commands(fake: FakeKfp, spec: Path) -> None:
    """As they are written there, but for the host."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = [part.split("```", 1)[0] for part in text.split("```sh\n")[1:]]
    script = "set -e\n" + "".join(block for block in blocks if "concord-pipeline" in block)
    assert "https://kubeflow.example.com/pipeline" in script
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script.replace("https://kubeflow.example.com/pipeline", fake.url)],
        cwd=spec.parent,
        env=environment(COMMIT="0123abc", PATH=path),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (run,) = fake.runs.values()
    assert "concord-key=" in run["description"]
    compiled, _ = yaml.safe_load_all((spec.parent / "evaluation.yaml").read_text())
    containers = compiled["deploymentSpec"]["executors"].values()
    assert all(c["container"]["image"].startswith("registry.example.com/team/") for c in containers)


@pytest.mark.filterwarnings("ignore:This client only works:FutureWarning")
def test_kfps_own_client_understands_the_fake_and_what_we_sent(fake: FakeKfp, spec: Path) -> None:
    done = submit(fake, spec, "--name", "nightly", "--workers", 4)
    assert done.returncode == 0, done.stderr
    (run_id,) = fake.runs
    assert fake.runs[run_id].keys() - {"script"} <= set(V2beta1Run.attribute_map.values())
    client = kfp.Client(host=fake.url)
    condition = {"key": "description", "operation": "IS_SUBSTRING", "string_value": "concord-key="}
    (listed,) = client.list_runs(filter=json.dumps({"predicates": [condition]}), page_size=10).runs
    run = client.get_run(run_id)
    assert listed.run_id == run.run_id == run_id
    assert (run.state, run.display_name, run.runtime_config.parameters["workers"]) == ("SUCCEEDED", "nightly", 4)
    assert [moment.state for moment in run.state_history] == ["PENDING", "RUNNING", "SUCCEEDED"]
    states = {task.display_name: task.state for task in run.run_details.task_details}
    assert states["verify-precision"] == "SUCCEEDED"


def test_a_run_on_the_volume_gets_the_pipeline_that_mounts_it(fake: FakeKfp, spec: Path, tmp_path: Path) -> None:
    template = tmp_path / "pods.yaml"
    template.write_text("nodeSelector: {gpu: a100}\n")
    done = call(
        "submit", "--host", fake.url, "--spec", spec, "--run", "/runs/mine", "--no-wait", "--json",
        "--pod-template", template, "--registry", "registry.example.com/team",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["outcome"], result["exit_code"], result["new"]) == ("submitted", 0, True)
    run = fake.runs[result["run_id"]]
    executors = run["pipeline_spec"]["platform_spec"]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert all(executor["pvcMount"][0]["mountPath"] == "/runs" for executor in executors.values())
    containers = run["pipeline_spec"]["pipeline_spec"]["deploymentSpec"]["executors"].values()
    assert all(c["container"]["image"].startswith("registry.example.com/team/") for c in containers)
    assert json.loads(run["runtime_config"]["parameters"]["pod_template"]) == {"nodeSelector": {"gpu": "a100"}}
    assert f"concord-pipeline wait {result['run_id']} --host {fake.url}" in done.stderr


@pytest.mark.parametrize(
    ("script", "code", "outcome"),
    [
        pytest.param(failing("shard-data"), 3, "failed", id="planning failed"),
        pytest.param(failing("evaluate"), 3, "failed", id="evaluation failed"),
        pytest.param(failing("verify-precision"), 1, "verification failed", id="verification failed"),
        pytest.param(failing("generate-report"), 3, "failed", id="report failed"),
        pytest.param([Moment("CANCELED")], 4, "cancelled", id="canceled"),
        pytest.param(terminated(), 4, "cancelled", id="terminated"),
        pytest.param([Moment("FAILED", {"verify-precision-driver": "FAILED"})], 3, "failed", id="driver failed"),
    ],
)
def test_exit_codes_of_a_finished_run(fake: FakeKfp, script: list[Moment], code: int, outcome: str) -> None:
    run_id = fake.add_run(script)
    done = call("wait", run_id, "--host", fake.url, "--json")
    assert done.returncode == code, done.stderr
    result = json.loads(done.stdout)
    assert (result["run_id"], result["outcome"], result["exit_code"]) == (run_id, outcome, code)
    assert done.stderr.splitlines()[-1] == f"{outcome}: {fake.url}/#/runs/details/{run_id}"


def test_a_terminated_run_is_told_from_a_failed_one_without_history(fake: FakeKfp) -> None:
    fake.writes_history = False
    going, canceling, failed = terminated()
    run_id = fake.add_run([going, canceling, canceling, failed])
    assert call("wait", run_id, "--host", fake.url).returncode == 4
    assert "CANCELING" not in json.dumps(fake.runs[run_id]["state_history"])


def test_a_retried_run_is_not_taken_for_the_terminated_one_that_it_was(fake: FakeKfp) -> None:
    going, canceling, failed = terminated()
    run_id = fake.add_run([going, canceling, failed, going, failed])
    for _ in range(2):
        fake._move(fake.runs[run_id])
    fake._move(fake.runs[run_id])
    assert call("wait", run_id, "--host", fake.url).returncode == 3


def test_time_out(fake: FakeKfp) -> None:
    run_id = fake.add_run([Moment("RUNNING", {"evaluate": "RUNNING"})])
    done = call("wait", run_id, "--host", fake.url, "--timeout", 1.5, "--json")
    assert done.returncode == 5
    assert "not over after 1.5 s" in one_error(done)
    assert f"concord-pipeline wait {run_id} --host {fake.url}" in done.stderr
    assert json.loads(done.stdout)["outcome"] == "not over"


def test_the_time_out_holds_while_the_api_is_away(fake: FakeKfp) -> None:
    run_id = fake.add_run(succeeding())
    fake.will("503", times=1000)
    started = time.monotonic()
    done = call("wait", run_id, "--host", fake.url, "--timeout", 2, "--patience", 600)
    assert done.returncode == 5, done.stderr
    assert time.monotonic() - started < 60
    assert fake.fired["503"] >= 2


def test_an_interrupt_leaves_the_run_alone(fake: FakeKfp) -> None:
    run_id = fake.add_run([Moment("RUNNING", {"evaluate": "RUNNING"})])
    process = subprocess.Popen(
        command("wait", run_id, "--host", fake.url),
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=ROOT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stderr is not None
    assert "evaluate" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f"concord-pipeline wait {run_id} --host {fake.url}" in stderr
    assert "Traceback" not in stderr
    assert not [method for method, path in fake.seen if method == "POST"]


def test_faults_while_waiting_pass(fake: FakeKfp) -> None:
    run_id = fake.add_run(succeeding())
    faults = ("drop", "500", "torn", "429", "503")
    for fault in faults:
        fake.will(fault)
    done = call("wait", run_id, "--host", fake.url)
    assert done.returncode == 0, done.stderr
    assert fake.fired == dict.fromkeys(faults, 1)
    assert "the database is away" in done.stderr


def test_retry_after_is_obeyed(fake: FakeKfp) -> None:
    run_id = fake.add_run([Moment("SUCCEEDED", {"verify-precision": "SUCCEEDED"})])
    fake.will("429", times=2)
    assert call("wait", run_id, "--host", fake.url).returncode == 0
    assert fake.fired["429"] == 2
    times = [moment for _, _, moment in fake.times]
    assert all((later - earlier).total_seconds() >= 1 for earlier, later in itertools.pairwise(times))


def test_a_lost_answer_makes_no_second_run(fake: FakeKfp, spec: Path) -> None:
    fake.will("lose", method="POST")
    done = submit(fake, spec, "--json")
    assert done.returncode == 0, done.stderr
    assert fake.fired["lose"] == 1
    assert len(fake.runs) == 1
    assert fake.seen[CREATE] == 1
    assert json.loads(done.stdout)["new"] is True


def test_a_creation_that_failed_is_tried_again(fake: FakeKfp, spec: Path) -> None:
    fake.will("500", method="POST").will("429", method="POST").will("drop", method="POST")
    assert submit(fake, spec, "--no-wait").returncode == 0
    assert fake.fired == {"500": 1, "429": 1, "drop": 1}
    assert len(fake.runs) == 1


def test_a_second_submission_with_the_key_finds_the_first(fake: FakeKfp, spec: Path) -> None:
    fake.page_size = 2
    first, second, other = (
        json.loads(submit(fake, spec, "--key", key, "--no-wait", "--json").stdout)
        for key in ("commit 1%+", "commit 1%+", "commit 2")
    )
    assert (first["new"], second["new"], other["new"]) == (True, False, True)
    assert first["run_id"] == second["run_id"] != other["run_id"]
    assert fake.seen[CREATE] == 2
    done = submit(fake, spec, "--key", "commit 1%+", "--workers", 8, "--json")
    assert done.returncode == 2
    assert first["run_id"] in one_error(done)
    assert "'workers'" in one_error(done)
    assert json.loads(done.stdout)["exit_code"] == 2
    assert len(fake.runs) == 2


def test_submissions_with_one_key_at_the_same_time_follow_one_run(fake: FakeKfp, spec: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: submit(fake, spec, "--key", "k", "--json"), range(4)))
    assert [d.returncode for d in done] == [0] * 4, [d.stderr for d in done]
    assert len({json.loads(d.stdout)["run_id"] for d in done}) == 1


def test_without_a_key_each_submission_is_a_run(fake: FakeKfp, spec: Path) -> None:
    for _ in range(2):
        assert submit(fake, spec, "--no-wait").returncode == 0
    assert len(fake.runs) == 2


@pytest.mark.parametrize(
    ("content", "arguments", "complaint"),
    [
        (SPEC.replace("model:", "modell:"), (), "unknown key 'modell'"),
        (SPEC.replace("s3://bucket/", ""), (), "'notes.jsonl'"),
        (SPEC.replace("/models/mine", "'/models/{{mine}}'"), (), "placeholder"),
        (SPEC, ("--set", "worker=3"), "did you mean 'workers'"),
        (SPEC, ("--set", "workers=many"), "whole number"),
        (SPEC, ("--set", "workers"), "--set INPUT=VALUE"),
        (SPEC, ("--registry", "https://registry"), "--registry"),
        (SPEC, ("--ca", "/nowhere.pem"), "/nowhere.pem"),
        (SPEC, ("--params", "/nowhere.yaml"), "/nowhere.yaml"),
        (SPEC, ("--token-file", "/nowhere"), "/nowhere"),
        (SPEC, ("--host", "kubeflow.example.com"), "not an address"),
        (SPEC, ("--run", "/home/me/run"), "no pod sees this"),
        (SPEC, ("--spec", "/nowhere.yaml"), "--set spec=/nowhere.yaml"),
        (SPEC, ("--pod-template", "pods.yaml"), "did you mean 'nodeSelector'"),
    ],
)
def test_bad_input_is_one_line_and_sends_nothing(
    fake: FakeKfp, spec: Path, content: str, arguments: tuple[str, ...], complaint: str
) -> None:
    spec.write_text(content)
    spec.with_name("pods.yaml").write_text("nodeSelectr: {gpu: a100}\n")
    there = [str(spec.with_name(a)) if a == "pods.yaml" else a for a in arguments]
    done = submit(fake, spec, *there)
    assert done.returncode == 2, done.stderr
    assert complaint in one_error(done)
    assert not fake.seen


def test_a_missing_input_is_named(fake: FakeKfp) -> None:
    done = call("submit", "--host", fake.url, "--run", "s3://bucket/runs/mine")
    assert done.returncode == 2
    assert "input 'spec' is missing" in one_error(done)
    assert not fake.seen


def test_a_run_that_is_not_there_and_a_run_without_a_name(fake: FakeKfp, spec: Path) -> None:
    done = call("wait", "no-such-run", "--host", fake.url)
    assert done.returncode == 2
    assert "404" in one_error(done)
    fake.multi_user = True
    done = submit(fake, spec)
    assert done.returncode == 2
    assert "multi-user" in one_error(done)


def test_a_multi_user_installation(fake: FakeKfp, spec: Path) -> None:
    fake.multi_user = True
    for _ in range(2):
        done = submit(fake, spec, "--namespace", "team", "--experiment", "a+b 100%", "--no-wait")
        assert done.returncode == 0, done.stderr
    (experiment,) = fake.experiments.values()
    assert (experiment["display_name"], experiment["namespace"]) == ("a+b 100%", "team")
    assert {run["experiment_id"] for run in fake.runs.values()} == {experiment["experiment_id"]}


def test_refused_access(fake: FakeKfp, spec: Path) -> None:
    fake.token = "right"
    done = submit(fake, spec)
    assert done.returncode == 6
    assert "without a token (401" in one_error(done)
    done = submit(fake, spec, "--json", KF_PIPELINES_TOKEN="wrong")
    assert done.returncode == 6
    assert "with the token that was given (401" in one_error(done)
    assert json.loads(done.stdout)["outcome"] == "out of reach"
    fake.forbidden = True
    done = submit(fake, spec, KF_PIPELINES_TOKEN="right")
    assert done.returncode == 6
    assert "403" in one_error(done)
    assert "not authorized" in one_error(done)
    assert fake.seen == {LIST: 3}, "a refusal is not tried again"


def test_where_the_token_comes_from(fake: FakeKfp, tmp_path: Path) -> None:
    fake.token = "right"
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("right\n")
    wrong.write_text("wrong")
    home = tmp_path / "home"
    home.mkdir()
    (home / ".netrc").write_text("machine 127.0.0.1 login me password secret\n")
    run_id = fake.add_run([Moment("SUCCEEDED", {"verify-precision": "SUCCEEDED"})])
    ways: list[tuple[tuple[object, ...], dict[str, str]]] = [
        (("--token-file", right), {"KF_PIPELINES_TOKEN": "wrong", "KF_PIPELINES_SA_TOKEN_PATH": str(wrong)}),
        ((), {"KF_PIPELINES_TOKEN": "right", "KF_PIPELINES_SA_TOKEN_PATH": str(wrong)}),
        ((), {"KF_PIPELINES_SA_TOKEN_PATH": str(right)}),
    ]
    for arguments, variables in ways:
        done = call("wait", run_id, "--host", fake.url, *arguments, HOME=str(home), **variables)
        assert done.returncode == 0, done.stderr
    assert set(fake.authorizations) == {"Bearer right"}


def test_a_projected_token_is_read_again(fake: FakeKfp, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    fake.token = "old"
    run_id = fake.add_run([Moment("RUNNING", {"evaluate": "RUNNING"})])
    process = subprocess.Popen(
        command("wait", run_id, "--host", fake.url),
        stderr=subprocess.PIPE,
        text=True,
        env=environment(KF_PIPELINES_SA_TOKEN_PATH=str(token)),
        cwd=ROOT,
    )
    assert process.stderr is not None
    assert "evaluate" in process.stderr.readline()
    with fake._lock:
        token.write_text("new")
        fake.token = "new"
        fake.runs[run_id]["script"].append(Moment("SUCCEEDED", {"verify-precision": "SUCCEEDED"}))
        fake.runs[run_id]["script"].popleft()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert {"Bearer old", "Bearer new"} <= set(fake.authorizations)


def test_an_authority_of_our_own(spec: Path, tmp_path: Path) -> None:
    authority, certificate = make_certificates(tmp_path)
    with FakeKfp(certificate).running() as fake:
        done = submit(fake, spec, "--ca", authority)
        assert done.returncode == 0, done.stderr
        seen = fake.seen.total()
        started = time.monotonic()
        done = submit(fake, spec)
        assert done.returncode == 6
        assert "isn't trusted" in one_error(done)
        assert "--ca" in one_error(done)
        assert time.monotonic() - started < 30, "an untrusted certificate is not tried again"
        assert fake.seen.total() == seen
        bundle = tmp_path / "other.pem"
        make_certificates(tmp_path / "..")[0].rename(bundle)
        done = submit(fake, spec, "--ca", authority, REQUESTS_CA_BUNDLE=str(bundle))
        assert done.returncode == 0, done.stderr


def test_nobody_answers(spec: Path) -> None:
    with FakeKfp().running() as fake:
        pass
    done = submit(fake, spec, "--patience", 1)
    assert done.returncode == 6
    assert "Connection refused" in one_error(done)


@pytest.mark.parametrize("fault", ["html", "redirect"])
def test_a_login_page_is_not_the_api(fake: FakeKfp, spec: Path, fault: str) -> None:
    fake.will(fault)
    done = submit(fake, spec)
    assert done.returncode == 6
    assert ("/dex/auth" if fault == "redirect" else "text/html") in one_error(done)
    assert fake.fired[fault] == 1
    assert fake.seen.total() == 1


@pytest.fixture(scope="module")
def finished(tiny_model: Path, small_data: Path, concord: Callable[..., Any], tmp_path_factory: Any) -> dict[str, Path]:
    """Two finished runs in folders: one whose verification passed, and one whose tolerance was too small."""
    folder = tmp_path_factory.mktemp("finished")
    runs = {}
    for name, dtype, tolerance, code in (("passed", "float32", 0.01, 0), ("failed", "bfloat16", 1e-12, 1)):
        spec = folder / f"{name}.yaml"
        spec.write_text(
            f"{{name: {name}, model: {tiny_model}, compute: {{dtype: {dtype}}}, precision: {{tolerance: {tolerance}}}, "
            f"audit: {{micro_batches: 4}}, batch: {{tokens: 256}}, report: {{bootstrap: 50}}, "
            f"tasks: [{{name: docs, type: perplexity, data: {small_data}/documents.jsonl, window: 64, limit: 8}}]}}"
        )
        runs[name] = folder / name
        done = concord("run", spec, "--run", runs[name])
        assert done.returncode == code, done.stderr
    return runs


def test_the_headline_table(fake: FakeKfp, finished: dict[str, Path]) -> None:
    run_id = fake.add_run(succeeding(), {"run": str(finished["passed"])})
    done = call("wait", run_id, "--host", fake.url, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    reduction = load_reduction(Store(str(finished["passed"])))
    assert result["verdict"] == "passed"
    assert result["reduction"] == reduction.digest
    values = {row["metric"]: row["value"] for row in result["headline"]}
    assert values == {name: reduction.metrics["docs"][name].value for name in values}
    assert "token_ppl" in values
    assert "token_ppl" in done.stderr
    assert "Verified: all" in done.stderr


def test_a_verdict_in_the_storage_counts_only_where_this_run_gave_it(fake: FakeKfp, finished: dict[str, Path]) -> None:
    cases = [
        (succeeding(), "failed", 1),
        (failing("verify-precision"), "failed", 1),
        (failing("verify-precision"), "passed", 3),
        (failing("evaluate"), "failed", 3),
        (failing("evaluate"), "passed", 3),
    ]
    for script, name, code in cases:
        run_id = fake.add_run(script, {"run": str(finished[name])})
        done = call("wait", run_id, "--host", fake.url)
        assert done.returncode == code, (script, name, done.stderr)


def test_a_storage_out_of_reach_is_said_and_not_made(fake: FakeKfp, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    run_id = fake.add_run(succeeding(), {"run": str(nowhere)})
    done = call("wait", run_id, "--host", fake.url)
    assert done.returncode == 0
    assert "no table of the numbers" in done.stderr
    assert not nowhere.exists()


GITHUB = {"GITHUB_SHA": "0123456789abcdef", "GITHUB_REPOSITORY": "o/r", "GITHUB_RUN_ID": "7", "GITHUB_RUN_ATTEMPT": "1"}
GITLAB = {
    "CI_COMMIT_SHA": "0123456789abcdef",
    "CI_COMMIT_SHORT_SHA": "01234567",
    "CI_PROJECT_PATH": "o/r",
    "CI_PIPELINE_ID": "7",
}


def example_command(name: str) -> tuple[str, dict[str, str]]:
    """The shell command of an example that submits, and the variables that its CI sets."""
    example = yaml.safe_load((ROOT / "examples" / "ci" / name).read_text())
    if name.startswith("gitlab"):
        return "\n".join(example["evaluate"]["script"]), GITLAB
    (step,) = [s for s in example["jobs"]["evaluate"]["steps"] if s.get("name") == "Submit and wait"]
    return step["run"], GITHUB


@pytest.mark.parametrize("name", ["github-actions.yaml", "gitlab-ci.yml"])
def test_the_examples_for_ci_gate_on_the_exit_code(fake: FakeKfp, tmp_path: Path, name: str) -> None:
    (tmp_path / "evaluation.yaml").write_text(SPEC)
    shell, variables = example_command(name)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for script, code in ((succeeding(), 0), (failing("verify-precision"), 1)):
        fake.script = script
        fake.runs.clear()
        done = subprocess.run(
            ["bash", "-e", "-c", shell],
            cwd=tmp_path,
            env=environment(KF_PIPELINES_ENDPOINT=fake.url, PATH=path, **variables),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert json.loads((tmp_path / "result.json").read_text())["exit_code"] == code
        (run,) = fake.runs.values()
        assert run["runtime_config"]["parameters"]["run"] == "s3://evaluations/0123456789abcdef"
        assert run["display_name"].startswith("o/r 01234567")


def test_the_summary_of_the_example_for_github(fake: FakeKfp, finished: dict[str, Path], tmp_path: Path) -> None:
    if shutil.which("jq") is None:
        pytest.skip("jq, which GitHub's machines have, is not here")
    example = yaml.safe_load((ROOT / "examples/ci/github-actions.yaml").read_text())
    (shell,) = [s["run"] for s in example["jobs"]["evaluate"]["steps"] if s.get("name") == "Summary"]
    run_id = fake.add_run(succeeding(), {"run": str(finished["passed"])})
    (tmp_path / "result.json").write_text(call("wait", run_id, "--host", fake.url, "--json").stdout)
    summary = tmp_path / "summary.md"
    subprocess.run(
        ["bash", "-e", "-c", shell], cwd=tmp_path, env=environment(GITHUB_STEP_SUMMARY=str(summary)), check=True
    )
    lines = summary.read_text().splitlines()
    assert lines[0] == f"**verified** {fake.url}/#/runs/details/{run_id}"
    assert any(line.startswith("| docs | token_ppl ↓ | ") for line in lines), lines


def test_compile_writes_what_is_committed(tmp_path: Path) -> None:
    done = call("compile", "--output", tmp_path / "pipeline.yaml")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "pipeline.yaml").read_bytes() == compiled_file("s3").read_bytes()
    done = call("compile", "--output", tmp_path / "none" / "pipeline.yaml")
    assert done.returncode == 2
    assert "--output" in one_error(done)


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("requests", ["wait", "id", "--host", "http://127.0.0.1:9"], "concord-eval[submit]"),
        ("kfp", ["compile", "--output", "/nowhere.yaml"], "concord-eval[kubeflow]"),
    ],
)
def test_what_is_not_installed_is_named(module: str, arguments: list[str], extra: str) -> None:
    code = (
        f"import sys; sys.modules[{module!r}] = None; sys.argv[1:] = {arguments!r}; import pipelines.cli as c; c.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert extra in one_error(done)
    assert extra in call("compile", "--help").stdout or module == "requests"


def test_a_command_is_quick_to_start() -> None:
    slow = ("kfp", "kubernetes", "numpy", "pyarrow", "obstore", "torch")
    code = f"import sys, pipelines.cli; sys.exit([m for m in {slow!r} if m in sys.modules] or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
