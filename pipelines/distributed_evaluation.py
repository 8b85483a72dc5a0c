"""The pipeline: shard the data, evaluate, verify the precision; and report, however that ended.

Types must be objects here, because kfp reads them from the signatures.
"""

from typing import Any

from kfp import dsl, kubernetes

from components.evaluate.component import evaluate
from components.generate_report.component import generate_report
from components.images import image as image_of
from components.shard_data.component import shard_data
from components.verify_precision.component import verify_precision
from pipelines.variants import VOLUME, VOLUME_PATH, Variant

SECRET = "concord-storage"
SECRET_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ALLOW_HTTP")


def build_pipeline(variant: Variant) -> Any:
    """The pipeline with the run's storage on S3 (`s3`) or on a volume (`pvc`), or computing in one step (`local`)."""
    return _in_one_step() if variant == "local" else _on_a_cluster(variant)


def _on_a_cluster(variant: Variant) -> Any:
    name = "distributed-evaluation" if variant == "s3" else f"distributed-evaluation-{variant}"

    @dsl.pipeline(name=name)
    def distributed_evaluation(
        spec: str,
        run: str,
        image: str = image_of("worker"),
        workers: int = 2,
        processes_per_worker: int = 1,
        gpus_per_worker: int = 0,
        pod_template: str = "{}",
        tolerance: float = 0.0,
        timeout: int = 86400,
    ) -> None:
        """Evaluate a language model on many machines: the number that one machine would give, bit for bit, with the proof.

        Args:
            spec: What to evaluate: the YAML of a spec (with absolute paths), or the path or s3:// URI of a YAML file. `concord spec` prints one to start from.
            run: Where the run keeps its plan, shards and report: s3://bucket/runs/mine; or, in the pipeline for a volume, /runs/mine. The same again goes on with what is missing.
            image: Image of the workers, the target `worker` of Concord's Dockerfile.
            workers: Pods of the PyTorchJob, the master included. Any number gives the same bits.
            processes_per_worker: Processes in each pod; with GPUs, one for each.
            gpus_per_worker: GPUs (nvidia.com/gpu) of each pod, for a spec with `compute: {device: cuda}`.
            pod_template: JSON object of what else the workers' pods need: nodeSelector, tolerations, affinity, resources, env, volumes.
            tolerance: Relative error of the summed log-likelihood that is still accepted. 0: what the spec says.
            timeout: Seconds after which the PyTorchJob is ended, whatever it does.
        """
        exit_task = generate_report(run=run)
        with dsl.ExitHandler(exit_task, name="evaluation"):
            planned = shard_data(spec=spec, run=run, tolerance=tolerance)
            digest = planned.outputs["plan_digest"]
            evaluated = evaluate(
                run=run,
                plan_digest=digest,
                backend="pytorchjob",
                image=image,
                workers=workers,
                processes_per_worker=processes_per_worker,
                gpus_per_worker=gpus_per_worker,
                pod_template=pod_template,
                timeout=timeout,
            )
            verified = verify_precision(run=run, plan_digest=digest).after(evaluated)
        for task in (planned, evaluated, verified, exit_task):
            _prepare(task)
            if variant == "pvc":
                kubernetes.mount_pvc(task, VOLUME, VOLUME_PATH)

    return distributed_evaluation


def _in_one_step() -> Any:
    @dsl.pipeline(name="evaluation-in-one-step")
    def evaluation_in_one_step(spec: str, run: str, processes: int = 1, tolerance: float = 0.0) -> None:
        """Evaluate a language model in one container, without a training operator: the same steps, and the same bits.

        Args:
            spec: What to evaluate: the YAML of a spec (with absolute paths), or the path or s3:// URI of a YAML file. `concord spec` prints one to start from.
            run: Where the run keeps its plan, shards and report: s3://bucket/runs/mine, or a folder that all steps mount. The same again goes on with what is missing.
            processes: Processes in the container. Any number gives the same bits.
            tolerance: Relative error of the summed log-likelihood that is still accepted. 0: what the spec says.
        """
        exit_task = generate_report(run=run, backend="local")
        with dsl.ExitHandler(exit_task, name="evaluation"):
            planned = shard_data(spec=spec, run=run, tolerance=tolerance)
            digest = planned.outputs["plan_digest"]
            evaluated = evaluate(run=run, plan_digest=digest, backend="local", processes_per_worker=processes)
            evaluated.set_container_image(image_of("worker"))
            verified = verify_precision(run=run, plan_digest=digest).after(evaluated)
        for task in (planned, evaluated, verified, exit_task):
            _prepare(task)

    return evaluation_in_one_step


def _prepare(task: Any) -> None:
    """What a step does, it does in the run's storage: a cached one would claim what it hasn't done."""
    task.set_caching_options(enable_caching=False)
    kubernetes.use_secret_as_env(task, SECRET, {key: key for key in SECRET_KEYS}, optional=True)
