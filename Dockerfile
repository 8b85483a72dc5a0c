# One image for each step, and one for the workers:
#   docker build --target shard_data -t concord/shard-data:0.1.0 .
# Targets: shard_data, evaluate, verify_precision, generate_report, worker.
# They run as any user, need no writable root, and write below /tmp only.

ARG BASE_IMAGE=python:3.11-slim-bookworm

# What installs. None of it gets into an image.
FROM ${BASE_IMAGE} AS build
ENV PIP_CONSTRAINT=/src/constraints.txt \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY constraints.txt pyproject.toml ./
# /opt/concord: what others wrote. /opt/app: our own code, a layer by itself, because it changes every day.
# A wheel without code carries the list of dependencies, so that they are not installed again after each change.
RUN python3 -m venv /opt/build \
    && /opt/build/bin/pip install setuptools \
    && python3 -m venv --without-pip /opt/concord \
    && echo /opt/app > "$(/opt/concord/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/app.pth" \
    && touch README.md \
    && /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /dependencies .

FROM build AS thin-packages
RUN /opt/build/bin/pip --python /opt/concord/bin/python install "$(echo /dependencies/*.whl)" \
    && /opt/build/bin/pip --python /opt/concord/bin/python uninstall --yes concord-eval
# A fifth of it nobody needs here: tests, headers, and Arrow's own clients of servers and of S3.
# (numpy.testing reads a file of the tests in numpy/_core.)
RUN find /opt/concord/lib -depth -not -path '*/numpy/_core/*' \
        \( -type d \( -name tests -o -name include \) -o -path '*/pyarrow/*flight*' -o -path '*/pyarrow/*s3*' \) \
        -exec rm -r {} + \
    && /opt/concord/bin/python -c 'import matplotlib.pyplot, numpy.testing, pyarrow.parquet, scipy.stats'

FROM thin-packages AS launcher-packages
RUN /opt/build/bin/pip --python /opt/concord/bin/python install "$(echo /dependencies/*.whl)[launcher]" \
    && /opt/build/bin/pip --python /opt/concord/bin/python uninstall --yes concord-eval

FROM build AS worker-packages
# A requirement, the URL of a wheel, or several words of pip, such as: torch --index-url URL
ARG TORCH_REQUIREMENT=torch
# hadolint ignore=SC2086
RUN /opt/build/bin/pip --python /opt/concord/bin/python install ${TORCH_REQUIREMENT} \
    && /opt/build/bin/pip --python /opt/concord/bin/python install "$(echo /dependencies/*.whl)[worker]" \
    && /opt/build/bin/pip --python /opt/concord/bin/python uninstall --yes concord-eval

FROM build AS app
COPY eval_core eval_core
COPY components components
# The submitter of pipelines is not for use inside of one.
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/build/bin/pip --python /opt/concord/bin/python install --no-deps --target /opt/app /wheels/*.whl \
    && rm /opt/app/bin/concord-pipeline

FROM ${BASE_IMAGE} AS runtime
ENV HOME=/tmp \
    TMPDIR=/tmp \
    HF_HOME=/tmp/huggingface \
    MPLCONFIGDIR=/tmp/matplotlib \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PATH=/opt/app/bin:/opt/concord/bin:$PATH
# A name for the user, because some libraries look for one.
RUN echo 'concord:x:65532:65532::/tmp:/usr/sbin/nologin' >> /etc/passwd \
    && echo 'concord:x:65532:' >> /etc/group
WORKDIR /
USER 65532:65532
CMD ["concord", "--help"]
ARG VERSION=0.1.0
ARG BASE_IMAGE
LABEL org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}"

FROM runtime AS thin
COPY --from=thin-packages /opt/concord /opt/concord
COPY --from=app /opt/app /opt/app

FROM runtime AS launcher
COPY --from=launcher-packages /opt/concord /opt/concord
COPY --from=app /opt/app /opt/app

FROM thin AS shard_data
LABEL org.opencontainers.image.title="concord/shard-data" \
      org.opencontainers.image.description="Turns a spec into a plan of shards"

FROM launcher AS evaluate
LABEL org.opencontainers.image.title="concord/evaluate" \
      org.opencontainers.image.description="Launches the workers of an evaluation and watches them"

FROM thin AS verify_precision
LABEL org.opencontainers.image.title="concord/verify-precision" \
      org.opencontainers.image.description="Reduces the committed shards to the numbers and checks them"

FROM launcher AS generate_report
LABEL org.opencontainers.image.title="concord/generate-report" \
      org.opencontainers.image.description="Ends a run's jobs and reports whatever the run has"

FROM runtime AS worker
COPY --from=worker-packages /opt/concord /opt/concord
COPY --from=app /opt/app /opt/app
LABEL org.opencontainers.image.title="concord/worker" \
      org.opencontainers.image.description="Computes shards: one rank or many"
