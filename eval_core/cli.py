"""The command line. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import os
import sys
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import typer

from eval_core import __version__
from eval_core.errors import ConcordError

app = typer.Typer(
    name="concord",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Evaluate a language model on one process or a thousand: the same number, bit for bit, with the proof.\n\n"
    "`concord run SPEC.yaml` does everything; the steps are commands of their own: plan, work, reduce, verify, report.",
)

SpecPath = Annotated[Path, typer.Argument(help="The spec, a YAML file; `concord spec` prints one to start from.")]
RunUri = Annotated[
    str, typer.Option("--run", envvar="CONCORD_RUN", help="The run's storage: a folder, or s3://, gs://, az://.")
]
Nproc = Annotated[
    int, typer.Option("--nproc", min=1, help="Processes on this machine. Any number gives the same bits.")
]
Reuse = Annotated[
    list[str] | None,
    typer.Option(
        "--reuse",
        help="Another run: its shards that ask the same of the same model are taken over. Can be given again.",
    ),
]

_HARNESS = "Instead of a spec, as lm-eval"


@app.command()
def run(
    spec: Annotated[
        Path | None, typer.Argument(help="The spec, a YAML file; `concord spec` prints one to start from.")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option("--run", help="The run's storage: a folder, or s3://, gs://, az://. Default: runs/NAME-DIGEST."),
    ] = None,
    nproc: Nproc = 1,
    reuse: Reuse = None,
    model: Annotated[
        str | None,
        typer.Option(help="A model folder, or a hub name as OWNER/MODEL.", rich_help_panel=_HARNESS),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(help="Tasks, groups, tags or YAML files, comma-separated.", rich_help_panel=_HARNESS),
    ] = None,
    num_fewshot: Annotated[
        int | None, typer.Option("--num_fewshot", "-f", help="Solved examples in the prompt.", rich_help_panel=_HARNESS)
    ] = None,
    limit: Annotated[
        float | None,
        typer.Option(
            "--limit", "-L", help="Documents of each task; below 1: a part of them.", rich_help_panel=_HARNESS
        ),
    ] = None,
    samples: Annotated[
        str | None,
        typer.Option(help='Documents of a task by index, as JSON: {"task": [0, 3]}.', rich_help_panel=_HARNESS),
    ] = None,
    include_path: Annotated[
        str | None, typer.Option("--include_path", help="A folder of more task YAML files.", rich_help_panel=_HARNESS)
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="auto, float32, bfloat16, float16 or float64.", rich_help_panel=_HARNESS)
    ] = "auto",
    system_instruction: Annotated[
        str | None,
        typer.Option("--system_instruction", help="What each prompt begins with.", rich_help_panel=_HARNESS),
    ] = None,
    apply_chat_template: Annotated[
        str | None,
        typer.Option(
            "--apply_chat_template",
            metavar="[NAME]",
            help="Put prompts into the chat template, or into the one of this name.",
            rich_help_panel=_HARNESS,
        ),
    ] = None,
    fewshot_as_multiturn: Annotated[
        str | None,
        typer.Option(
            "--fewshot_as_multiturn",
            metavar="[BOOL]",
            help="Solved examples as turns. Default: where there is a chat template.",
            rich_help_panel=_HARNESS,
        ),
    ] = None,
    gen_kwargs: Annotated[
        list[str] | None,
        typer.Option(
            "--gen_kwargs",
            metavar="KEY=VALUE,...",
            help="How texts are generated, in place of what tasks say: until, max_gen_toks, do_sample, temperature, top_k, top_p.",
            rich_help_panel=_HARNESS,
        ),
    ] = None,
    confirm_run_unsafe_code: Annotated[
        bool,
        typer.Option("--confirm_run_unsafe_code", help="Let tasks run code of the model's.", rich_help_panel=_HARNESS),
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Of the solved examples and all else drawn.", rich_help_panel=_HARNESS)
    ] = 1234,
) -> None:
    """Plan, work, reduce, verify and report. Called again, it resumes: what is committed is not computed twice.

    concord run SPEC.yaml, or, with the flags of lm-eval: concord run --model OWNER/MODEL --tasks arc_easy,hellaswag --num_fewshot 5
    """
    from eval_core.flags import Flags, spec_of_flags
    from eval_core.run import run_spec
    from eval_core.spec_yaml import load_spec

    flags = Flags(
        model=model,
        tasks=tasks,
        num_fewshot=num_fewshot,
        limit=limit,
        samples=samples,
        include_path=include_path,
        dtype=dtype,
        system_instruction=system_instruction,
        apply_chat_template=apply_chat_template,
        fewshot_as_multiturn=fewshot_as_multiturn,
        gen_kwargs=tuple(gen_kwargs or ()),
        confirm_run_unsafe_code=confirm_run_unsafe_code,
        seed=seed,
    )
    if spec is None:
        raise typer.Exit(run_spec(spec_of_flags(flags), Path.cwd(), run, nproc, reuse or ()))
    flags.refuse_beside_a_spec()
    raise typer.Exit(run_spec(load_spec(spec), spec.resolve().parent, run, nproc, reuse or ()))


@app.command()
def resume(run: RunUri, nproc: Nproc = 1) -> None:
    """Go on with a run that has a plan, on any number of processes."""
    from eval_core.run import resume_run

    raise typer.Exit(resume_run(run, nproc))


@app.command()
def plan(spec: SpecPath, run: RunUri) -> None:
    """Turn a spec into a plan: requests, micro-batches, shards. Knows nothing of the number of processes."""
    from eval_core.run import plan_spec
    from eval_core.spec_yaml import load_spec

    plan_spec(load_spec(spec), spec.resolve().parent, run)


@app.command()
def work(run: RunUri, reuse: Reuse = None) -> None:
    """Compute what is missing. Under torchrun this is one rank; alone it does everything.

    torchrun reads --run as its own --run-path, so give it CONCORD_RUN: CONCORD_RUN=URI torchrun ... -m eval_core.cli work
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a lost store is said in one line, not in C++ frames
    from eval_core.work.worker import work as work_on

    work_on(run, reuse or ())


@app.command()
def reduce(run: RunUri) -> None:
    """Reduce the committed shards to the numbers, exactly."""
    from eval_core.run import reduce_step

    reduce_step(run)


@app.command()
def verify(run: RunUri) -> None:
    """Check the run: coverage, digests, exactness, replay, precision. Exit code 1 when a check fails."""
    from eval_core.run import verify_step

    raise typer.Exit(verify_step(run))


@app.command()
def report(run: RunUri) -> None:
    """Write results.json, samples, report.md and report.html."""
    from eval_core.run import report_step

    report_step(run)


@app.command()
def rescore(
    run: Annotated[
        str, typer.Argument(help="A run with tasks of the lm-evaluation-harness, all of whose work is done.")
    ],
    include_path: Annotated[
        Path | None,
        typer.Option(
            "--include_path", help="A folder with the changed task files. Default: those it was planned with."
        ),
    ] = None,
) -> None:
    """Score the stored answers again with changed filters or metrics; the model is not needed."""
    from eval_core.run import rescore_run

    raise typer.Exit(rescore_run(run, include_path))


@app.command()
def compare(
    left: Annotated[str, typer.Argument(help="A reduced run.")],
    right: Annotated[str, typer.Argument(help="Another one.")],
) -> None:
    """Compare two runs bit by bit. Exit code 1 where they differ."""
    from eval_core.run import compare_runs

    raise typer.Exit(compare_runs(left, right))


@app.command()
def tune(spec: SpecPath) -> None:
    """Time this machine on a sample of the spec's requests, and print the lines that would make it faster. Takes minutes."""
    from eval_core.spec_yaml import load_spec
    from eval_core.tune import tune as tune_spec

    tune_spec(load_spec(spec), spec.resolve().parent)


@app.command()
def spec() -> None:
    """Print every key of a spec with its default and its meaning."""
    from eval_core.spec_yaml import example_spec

    typer.echo(example_spec(), nl=False)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"concord {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _spelled_out(arguments: list[str]) -> list[str]:
    """`arguments` where some of lm-eval's flags have no value or several, as typer takes them: with one each time."""
    spelled: list[str] = []
    flag = ""
    for argument, following in zip_longest(arguments, arguments[1:], fillvalue="--"):
        if argument.startswith("-"):
            flag = argument
        elif flag == "--gen_kwargs" and spelled[-1] != flag:
            spelled.append(flag)
        spelled.append(argument)
        if argument in ("--apply_chat_template", "--fewshot_as_multiturn") and following.startswith("-"):
            spelled.append("true")
    return spelled


def main() -> None:
    """Entry point of the `concord` command: a user's mistake is one line, never a traceback."""
    try:
        app(_spelled_out(sys.argv[1:]))
    except ConcordError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
