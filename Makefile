# make demo   evaluate a real model on real text with two processes, and open the report
# make test   everything that must pass before a merge
# make cluster, make cluster-down, make test-cluster   a Kubernetes on this machine, and the tests on it (root, Go)
# make bench  speed and memory beside the lm-evaluation-harness (not part of the tests)
# make bench-claims, make bench-schedule   a thousand processes that claim and commit; how busy the order of the claims keeps them
# make bench-scale  time and memory of planning, reducing, verifying and reporting a million requests

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA := .data
MODEL := $(DATA)/smollm2-135m-instruct
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

LINT := .venv-lint

.PHONY: demo test check check-manifests pytest bench bench-scale install-demo install-dev data clean

demo: install-demo $(MODEL)/model.safetensors $(DATA)/topics.jsonl
	$(BIN)/concord run examples/demo.yaml --run runs/demo --nproc 2
	@echo
	@echo "Next: the same on one process, and the comparison, bit by bit:"
	@echo "  $(BIN)/concord run examples/demo.yaml --run runs/demo-1 --nproc 1"
	@echo "  $(BIN)/concord compare runs/demo runs/demo-1"

test: check pytest

check: install-dev check-manifests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

check-manifests: $(LINT)/stamp
	$(LINT)/bin/python manifests/lint/check.py

$(LINT)/stamp: constraints-lint.txt
	$(PYTHON) -m venv $(LINT)
	$(LINT)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-lint.txt \
	  checkov kubernetes-validate yamllint
	touch $@

# Two files at a time, the long ones first: most tests are one process, or many that mostly start. The cluster has the machine for itself.
pytest: install-dev data
	$(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 20 tests/integration tests/unit
	@if [ "$$CONCORD_CLUSTER" = 1 ] || [ -n "$$KUBECONFIG" ]; then $(BIN)/pytest tests/cluster; \
	else echo "tests/cluster was left out: it runs with CONCORD_CLUSTER=1 (starts a Kubernetes, as root) or KUBECONFIG"; fi

.PHONY: cluster cluster-down test-cluster

cluster: install-dev
	cd tests/cluster && $(abspath $(BIN))/python -m testbed up

cluster-down: install-dev
	cd tests/cluster && $(abspath $(BIN))/python -m testbed down

test-cluster: install-dev data
	CONCORD_CLUSTER=1 $(BIN)/pytest tests/cluster

bench: install-dev data $(DATA)/humaneval.jsonl
	$(BIN)/python benchmarks/bench.py

.PHONY: bench-claims bench-schedule

bench-claims: install-dev
	$(BIN)/python benchmarks/claims.py

bench-schedule: install-dev
	$(BIN)/python benchmarks/schedule.py

bench-scale: install-dev $(MODEL)/model.safetensors
	$(BIN)/python benchmarks/scale.py

data: $(MODEL)/model.safetensors $(DATA)/topics.jsonl $(DATA)/novel_concepts.jsonl

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[worker]' accelerate gguf
	touch $@

$(VENV)/dev.stamp: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[dev]'
	touch $@ $(VENV)/demo.stamp

install-demo: $(VENV)/demo.stamp
install-dev: $(VENV)/dev.stamp

$(MODEL)/model.safetensors: | $(VENV)/demo.stamp
	$(BIN)/python examples/fetch_model.py $(MODEL)

$(DATA)/topics.jsonl: | $(VENV)/demo.stamp
	$(BIN)/python examples/make_pydoc_tasks.py $(DATA)

$(DATA)/novel_concepts.jsonl: | $(VENV)/demo.stamp
	$(BIN)/python examples/fetch_bigbench.py $(DATA)

$(DATA)/humaneval.jsonl: | $(VENV)/demo.stamp
	$(BIN)/python examples/fetch_humaneval.py $(DATA)

clean:
	rm -rf $(VENV) $(LINT) $(DATA) runs
