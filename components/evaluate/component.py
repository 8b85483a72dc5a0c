"""The definition of `evaluate`. Types must be objects here, because kfp reads them from the signature."""

from kfp import dsl

from components.images import image as image_of


@dsl.container_component
def evaluate(
    run: str,
    plan_digest: str,
    metrics: dsl.Output[dsl.Metrics],
    job: dsl.OutputPath(str),  # type: ignore[valid-type]
    backend: str = "pytorchjob",
    image: str = image_of("worker"),
    workers: int = 2,
    processes_per_worker: int = 1,
    gpus_per_worker: int = 0,
    pod_template: str = "{}",
    timeout: int = 86400,
    patience: int = 300,
) -> dsl.ContainerSpec:
    """Compute the shards that are missing. Any number of workers and processes gives the same bits.

    With `pytorchjob` this step creates a PyTorchJob and watches it. With `local` it computes in its own container, which
    must then run the `worker` image: task.set_container_image(image("worker")).

    Args:
        run: The run's storage, as `shard_data` was given it.
        plan_digest: Digest of the plan that the run must hold.
        backend: Where the ranks run: `pytorchjob` (in the pods of a PyTorchJob) or `local` (in this step's container).
        image: The pods' image, `worker` of the Dockerfile. pytorchjob only.
        workers: Pods, the master included. pytorchjob only.
        processes_per_worker: Ranks of a pod; of this container with `local`.
        gpus_per_worker: GPUs of a pod (nvidia.com/gpu). pytorchjob only.
        pod_template: JSON object of what else the pods need: nodeSelector, tolerations, affinity, resources, env, volumes. pytorchjob only.
        timeout: Seconds after which the job is ended, whatever it does. pytorchjob only.
        patience: Seconds for pods that can't be scheduled or started, until that is an error. pytorchjob only.

    Returns:
        metrics: Shards committed before and by this step, and its time.
        job: Name of the PyTorchJob; empty with `local`.
    """
    return dsl.ContainerSpec(
        image=image_of("evaluate"),
        command=["python", "-m", "components.evaluate"],
        args=["--executor-input", dsl.PIPELINE_TASK_EXECUTOR_INPUT_PLACEHOLDER],
    )
