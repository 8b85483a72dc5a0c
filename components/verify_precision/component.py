"""The definition of `verify_precision`. Types must be objects here, because kfp reads them from the signature."""

from kfp import dsl

from components.images import image


@dsl.container_component
def verify_precision(
    run: str,
    plan_digest: str,
    metrics: dsl.Output[dsl.Metrics],
    checks: dsl.Output[dsl.Markdown],
    verdict: dsl.OutputPath(str),  # type: ignore[valid-type]
) -> dsl.ContainerSpec:
    """Reduce the committed shards to the numbers, exactly, and check them. The step fails when a check fails.

    The outputs are written before it fails, and the UI then shows `checks`.

    Args:
        run: The run's storage, as `shard_data` was given it.
        plan_digest: Digest of the plan that the run must hold.

    Returns:
        metrics: The headline numbers, how many checks passed, and the relative error that the audit measured.
        checks: Every check with what was expected and what was found.
        verdict: passed, failed or undecided.
    """
    return dsl.ContainerSpec(
        image=image("verify_precision"),
        command=["python", "-m", "components.verify_precision"],
        args=["--executor-input", dsl.PIPELINE_TASK_EXECUTOR_INPUT_PLACEHOLDER],
    )
