"""The definition of `generate_report`. Types must be objects here, because kfp reads them from the signature."""

from kfp import dsl

from components.images import image


@dsl.container_component
def generate_report(
    run: str,
    status: dsl.PipelineTaskFinalStatus,
    report: dsl.Output[dsl.HTML],
    summary: dsl.Output[dsl.Markdown],
    metrics: dsl.Output[dsl.Metrics],
    backend: str = "pytorchjob",
) -> dsl.ContainerSpec:
    """Report whatever the run has, however the steps before it ended. Made to be the exit task of a pipeline.

    With `pytorchjob`, and inside a cluster, it first deletes the PyTorchJobs of the run, so that none outlives a pipeline that was stopped.

    Args:
        run: The run's storage, as `shard_data` was given it.
        status: How the steps before ended; the pipeline fills it in.
        backend: As `evaluate` was given it. With `local` there is no PyTorchJob to delete.

    Returns:
        report: One self-contained page: the full report, or how far the run came and how to resume it.
        summary: The same in a few lines.
        metrics: The headline numbers and the verdict, or how many shards are committed.
    """
    return dsl.ContainerSpec(
        image=image("generate_report"),
        command=["python", "-m", "components.generate_report"],
        args=["--executor-input", dsl.PIPELINE_TASK_EXECUTOR_INPUT_PLACEHOLDER],
    )
