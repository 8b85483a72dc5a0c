"""The command line of the pipelines, for CI. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eval_core.errors import ConcordError, UsageError
from eval_core.say import say
from pipelines.variants import Variant

if TYPE_CHECKING:
    from pipelines.api import Api
    from pipelines.results import Results
    from pipelines.state import Outcome, Run

_INTERRUPTED = 130

app = typer.Typer(
    name="concord-pipeline",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Evaluate on Kubeflow Pipelines, and let the exit code decide.\n\n"
    "concord-pipeline submit --host https://kubeflow.example.com/pipeline --spec mine.yaml --run s3://bucket/runs/mine\n\n"
    "Exit codes: 0 verified, 1 the verification failed, 2 the input is wrong, 3 the run failed, 4 it was cancelled, "
    "5 it isn't over after --timeout, 6 Kubeflow Pipelines is out of reach or refuses.",
)

Host = Annotated[
    str,
    typer.Option(
        "--host",
        envvar="KF_PIPELINES_ENDPOINT",
        help="Address of Kubeflow Pipelines, as in the browser before /#/: https://kubeflow.example.com/pipeline, "
        "or http://ml-pipeline-ui.kubeflow from within the cluster.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        help="File with the bearer token. Without it: the variable KF_PIPELINES_TOKEN, the file that KF_PIPELINES_SA_TOKEN_PATH "
        "names, or the token that the cluster projects into a pod.",
    ),
]
Ca = Annotated[
    Path | None,
    typer.Option(
        "--ca", envvar="KF_PIPELINES_CA", help="Certificate of the authority to trust, where it is your own (PEM)."
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout", min=0, help="Seconds to wait for the end; the run goes on after that. Default: for ever."
    ),
]
Patience = Annotated[
    float, typer.Option("--patience", min=0, help="Seconds for which an API without an answer is tried again.")
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the result to standard output as one JSON object, for machines.")
]
Registry = Annotated[
    str | None,
    typer.Option(
        "--registry",
        envvar="CONCORD_REGISTRY",
        help="Where you have pushed the images: registry.example.com/team. Default: as their names stand, concord/...",
    ),
]


@app.command()
def submit(
    host: Host,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            envvar="CONCORD_RUN",
            help="The run's storage: s3://bucket/runs/mine, or /runs/mine on the volume concord-runs. A storage that holds "
            "a part of the work is gone on with.",
        ),
    ] = None,
    spec: Annotated[
        str | None,
        typer.Option("--spec", help="The spec: a YAML file here, which is checked and sent, or an s3:// URI."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Pods. Any number gives the same bits.")
    ] = None,
    processes_per_worker: Annotated[
        int | None, typer.Option("--processes-per-worker", min=1, help="Processes in each pod.")
    ] = None,
    gpus_per_worker: Annotated[int | None, typer.Option("--gpus-per-worker", min=0, help="GPUs of each pod.")] = None,
    pod_template: Annotated[
        Path | None,
        typer.Option(
            "--pod-template", help="JSON or YAML file with what else the pods need: nodeSelector, tolerations, ..."
        ),
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option("--tolerance", min=0, help="Accepted relative error, instead of the spec's.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="INPUT=VALUE", help="Any input of the pipeline: --set timeout=7200. Again and again."
        ),
    ] = None,
    params: Annotated[
        Path | None, typer.Option("--params", help="YAML or JSON file of inputs; options and --set win over it.")
    ] = None,
    registry: Registry = None,
    name: Annotated[
        str | None, typer.Option("--name", help="The run's name in the UI. Default: the end of --run.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            help="Idempotency key, such as the commit: a second submission with it finds the first one's run, however "
            "that ended. Default: a new run each time.",
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", envvar="KF_PIPELINES_NAMESPACE", help="Your profile, in a multi-user installation."
        ),
    ] = None,
    experiment: Annotated[
        str | None,
        typer.Option("--experiment", help="The group of runs in the UI; made where there is none. Default: Default."),
    ] = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Don't wait for the end; `wait` can do it later.")] = False,
    timeout: Timeout = None,
    patience: Patience = 300.0,
    json_: Json = False,
) -> None:
    """Start the pipeline, wait for its end and give its verdict as the exit code."""
    typed = {
        "run": run,
        "workers": workers,
        "processes_per_worker": processes_per_worker,
        "gpus_per_worker": gpus_per_worker,
        "tolerance": tolerance,
    }

    def work(result: dict[str, Any]) -> int:
        from pipelines.package import load_package
        from pipelines.parameters import read_file, read_pod_template, read_settings, read_spec, resolve
        from pipelines.submit import Submission
        from pipelines.submit import submit as submit_run

        given = read_file(params) if params else {}
        given |= read_settings(settings or ())
        given |= {name: value for name, value in typed.items() if value is not None}
        if spec is not None:
            given["spec"] = read_spec(spec)
        if pod_template is not None:
            given["pod_template"] = read_pod_template(pod_template)
        package = load_package(_variant(given.get("run")), registry)
        values = resolve(package.inputs, given)
        api = _api(host, token_file, ca)
        submission = Submission(
            name=name or str(values["run"]).rstrip("/").rpartition("/")[2],
            key=key or str(uuid.uuid4()),
            namespace=namespace,
            experiment=experiment or ("Default" if namespace else None),
            pipeline=package.content,
            parameters=values,
        )
        made, new = submit_run(api, submission, patience)
        result |= {"run_id": made.id, "name": made.name, "url": api.run_url(made.id), "new": new, "state": made.state}
        say(f"run {made.id} {'submitted' if new else 'found by its key'}: {api.run_url(made.id)}")
        if no_wait:
            result["outcome"] = "submitted"
            say(f"wait for it with: {_again(api, made.id)}")
            return 0
        return _wait(api, made.id, timeout, patience, result)

    _answer(work, json_)


@app.command()
def wait(
    run_id: Annotated[str, typer.Argument(help="The run's id, as `submit` and the page's address give it.")],
    host: Host,
    token_file: TokenFile = None,
    ca: Ca = None,
    timeout: Timeout = None,
    patience: Patience = 300.0,
    json_: Json = False,
) -> None:
    """Wait for the end of a run that was submitted, and give its verdict as the exit code."""

    def work(result: dict[str, Any]) -> int:
        api = _api(host, token_file, ca)
        result |= {"run_id": run_id, "url": api.run_url(run_id)}
        return _wait(api, run_id, timeout, patience, result)

    _answer(work, json_)


@app.command("compile")
def compile_(
    output: Annotated[Path, typer.Option("--output", help="The YAML file to write, for the UI's upload.")],
    variant: Annotated[
        Variant,
        typer.Option(
            "--variant",
            help="Storage: object storage, a volume; or everything in one step, without a training operator.",
        ),
    ] = "s3",
    registry: Registry = None,
) -> None:
    r"""Compile the pipeline to a file that the UI of Kubeflow Pipelines takes. Needs kfp: pip install 'concord-eval\[kubeflow]'."""
    from pipelines.compile import compile_pipeline

    compile_pipeline(variant, output, registry)
    say(f"{variant} pipeline written to {output}, for the upload in the UI of Kubeflow Pipelines")


def main() -> None:
    """Entry point of the `concord-pipeline` command: a user's mistake is one line, never a traceback."""
    try:
        app()
    except ConcordError as error:
        say(f"error: {error}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _answer(work: Callable[[dict[str, Any]], int], as_json: bool) -> None:
    """Do `work`, which fills in the result; print that where it is wanted, and exit as `work` says."""
    result: dict[str, Any] = {}
    try:
        code = work(result)
    except ConcordError as error:
        say(f"error: {error}")
        code = error.exit_code
        result |= {"outcome": _ERRORS[code], "error": str(error)}
    if as_json:
        print(json.dumps(result | {"exit_code": code}, indent=1))
    raise typer.Exit(code)


_ERRORS = {1: "error", 2: "bad input", 5: "not over", 6: "out of reach"}


def _api(host: str, token_file: Path | None, ca: Path | None) -> Api:
    from pipelines.api import Api
    from pipelines.bearer import token_source

    return Api(host, token_source(token_file, os.environ), ca)


def _variant(run: object) -> Variant:
    """The pipeline that mounts what the run's storage needs."""
    from pipelines.variants import VOLUME_PATH

    if not isinstance(run, str):
        raise UsageError("the run's storage is missing: --run s3://bucket/runs/mine, or --run /runs/mine on the volume")
    if "://" in run:
        return "s3"
    if run.startswith(f"{VOLUME_PATH}/"):
        return "pvc"
    raise UsageError(
        f"--run {run}: no pod sees this; needed is s3://bucket/... or a path below {VOLUME_PATH}/, the volume"
    )


def _wait(api: Api, run_id: str, timeout: float | None, patience: float, result: dict[str, Any]) -> int:
    from pipelines.results import read_results
    from pipelines.state import EXIT_CODES, outcome
    from pipelines.wait import wait as wait_for

    try:
        end = wait_for(api, run_id, timeout, patience)
    except (ConcordError, KeyboardInterrupt) as error:
        if not isinstance(error, UsageError):
            say(f"wait again with: {_again(api, run_id)}")
        raise
    run = end.run
    results = read_results(str(run.parameters.get("run", ""))) if _verified_here(run) else "the run has no verification"
    verdict = None if isinstance(results, str) else results.verdict
    came_to = outcome(run, seen_canceling=end.seen_canceling, verdict=verdict)
    result |= {"name": run.name, "state": run.state, "steps": dict(run.steps), "outcome": came_to, **_as_json(results)}
    _show(api, run, came_to, results)
    return EXIT_CODES[came_to]


def _verified_here(run: Run) -> bool:
    """Whether this run got as far as to write a verification: an older one would mislead."""
    return run.steps.get("verify-precision") in ("SUCCEEDED", "FAILED")


def _show(api: Api, run: Run, came_to: Outcome, results: Results | str) -> None:
    if isinstance(results, str):
        say(f"no table of the numbers: {results}")
    else:
        from rich.console import Console

        from eval_core.report.headline import print_headline

        print_headline(results.rows, Console(stderr=True))
        say(results.sentence)
    if came_to == "verification failed" and isinstance(results, str):
        say(
            "verify-precision failed: a check most likely, but from here it can't be told from a fault of the step itself"
        )
    if came_to == "failed":
        failed = [step for step, state in run.steps.items() if state == "FAILED"]
        say(f"failed in: {', '.join(failed) or 'no step that the API names'}; the step's log says why")
    say(f"{came_to}: {api.run_url(run.id)}")


def _as_json(results: Results | str) -> dict[str, Any]:
    if isinstance(results, str):
        return {"verdict": None, "headline": None, "reduction": None}
    rows = [
        {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in asdict(row).items()}
        for row in results.rows
    ]
    return {"verdict": results.verdict, "headline": rows, "reduction": results.reduction}


def _again(api: Api, run_id: str) -> str:
    return f"concord-pipeline wait {shlex.quote(run_id)} --host {shlex.quote(api.host)}"


if __name__ == "__main__":
    main()
