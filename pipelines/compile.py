"""Compile a pipeline. Needs kfp, which submitting doesn't."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from eval_core.errors import UsageError
from pipelines.package import with_registry
from pipelines.variants import Variant


def compile_pipeline(variant: Variant, output: Path, registry: str | None = None) -> None:
    """Write the compiled pipeline to `output`: for one version of kfp always the same bytes.

    Raises:
        UsageError: kfp isn't installed, or `output` can't be written.
    """
    try:
        from kfp import compiler
    except ImportError as error:
        raise UsageError("compiling needs kfp: pip install 'concord-eval[kubeflow]'; submitting doesn't") from error
    from pipelines.distributed_evaluation import build_pipeline

    with TemporaryDirectory(prefix="concord-") as folder:
        compiled = Path(folder, "pipeline.yaml")
        compiler.Compiler().compile(build_pipeline(variant), str(compiled))
        text = with_registry(compiled.read_text(encoding="utf-8"), registry)
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--output {output}: {error.strerror}") from error
