"""The definition of `shard_data`. Types must be objects here, because kfp reads them from the signature."""

from kfp import dsl

from components.images import image


@dsl.container_component
def shard_data(
    spec: str,
    run: str,
    plan: dsl.Output[dsl.Dataset],
    metrics: dsl.Output[dsl.Metrics],
    plan_digest: dsl.OutputPath(str),  # type: ignore[valid-type]
    tolerance: float = 0.0,
) -> dsl.ContainerSpec:
    """Turn a spec into a plan: requests, micro-batches and shards, tokenized once, in the run's storage.

    A run has one plan for ever: called again with the same spec, data and model, the step finds it there.

    Args:
        spec: The spec: YAML text, or the path or s3:// URI of a YAML file. Relative paths in a file start at its folder; in YAML text every path must be absolute.
        run: The run's storage: an s3://, gs:// or az:// URI, or a path on a volume that all steps and workers mount.
        tolerance: Relative error of the summed log-likelihood that is still accepted. 0: what the spec says.

    Returns:
        plan: What was planned, as JSON: digest, sizes, and the run's URI.
        metrics: Examples, requests, micro-batches and shards.
        plan_digest: SHA-256 of the plan; equal plans are the same work.
    """
    return dsl.ContainerSpec(
        image=image("shard_data"),
        command=["python", "-m", "components.shard_data"],
        args=["--executor-input", dsl.PIPELINE_TASK_EXECUTOR_INPUT_PLACEHOLDER],
    )
