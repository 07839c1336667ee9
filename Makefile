# make run    a virtual environment with the base package only, and a router at amqp://127.0.0.1:5672
# make demo   five routers, one of which is killed while messages cross their mesh
# make test   everything set up, then all checks but the slow ones; make check is its first part, without clients
# make spark  what runs on Spark, in one session; a part of make test
# make slow   loads and soaks, minutes each, and a Spark cluster
# make uncompiled  unit tests and clients once more, with the kernel in plain Python, but for rooms without a kernel
# make bench  what a router costs, beside byte forwarders; make bench-mesh: what a mesh takes
# make wheel  what people install, with the kernel compiled, in dist/
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -q
# As many processes as there are cores, but few enough for tests that start programs of their own.
PARALLEL := -n auto --maxprocesses 4 --dist worksteal
# A path, not an import hook: type checkers follow the one and do not see the other.
EDITABLE := --config-settings editable_mode=compat
STAGE := .ci/stage
# Where there is a C compiler, with Python's headers, the tests are those of the compiled kernel, or fail.
HEADERS = $(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
TESTED = AMQPMESH_KERNEL=$(if $(shell command -v $(CC)),$(if $(wildcard $(HEADERS)),compiled))
PURE := AMQPMESH_KERNEL=pure
# Tests of the kernel and of its callers: they run with both kernels in `make test`.
KERNELLESS := --ignore=tests/ci --ignore=tests/policies --ignore=tests/benchmarks --ignore-glob="tests/topology/test_*" --ignore-glob="tests/pipeline/test_*"
REACHING := tests/router/kernel tests/router/amqp tests/router/delivery tests/router/telemetry tests/hostile

.PHONY: run demo test check slow uncompiled lint format types imports unit spark pure interop bench bench-mesh docs picture wheel clean begin
.NOTPARALLEL:

run: .venv/base .venv/kernel
	@$(BIN)/amqpmesh run $(ARGS)

demo: .venv/base .venv/kernel
	@$(BIN)/amqpmesh demo $(ARGS)

test: begin lint types imports unit spark pure interop
	@$(STAGE)

check: begin lint types imports unit pure
	@$(STAGE)

slow: begin .venv/test .venv/kernel tests/interop/node_modules
	@$(TESTED) $(STAGE) slow $(PYTEST) -n auto --maxprocesses 2 --dist loadfile -m slow --junit-xml=build/slow.xml
	@$(STAGE)

uncompiled: begin .venv/test tests/interop/node_modules
	@$(PURE) $(STAGE) unit $(PYTEST) $(PARALLEL) $(KERNELLESS) --junit-xml=build/unit-uncompiled.xml
	@$(PURE) $(STAGE) interop $(PYTEST) $(PARALLEL) -m interop --junit-xml=build/interop-uncompiled.xml
	@$(STAGE)

begin:
	@rm -rf build/stages build/*.xml

lint: .venv/test
	@$(STAGE) lint sh -c '$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/python .ci/house.py && $(BIN)/codespell'

format: .venv/test
	$(BIN)/ruff check --fix . && $(BIN)/ruff format . && $(BIN)/python .ci/house.py --tidy

types: .venv/test
	@$(STAGE) types sh -c '$(BIN)/mypy && $(BIN)/mypy examples/*.py'

imports: .venv/test
	@$(STAGE) imports $(BIN)/lint-imports --no-cache --no-logo

unit: .venv/test .venv/kernel
	@$(TESTED) $(STAGE) unit $(PYTEST) $(PARALLEL) --junit-xml=build/unit.xml

# One process, since a session takes some seconds and a gigabyte.
spark: .venv/test .venv/kernel
	@$(TESTED) $(STAGE) spark $(PYTEST) -m "spark and not slow" --junit-xml=build/spark.xml

pure: .venv/test
	@$(PURE) $(STAGE) pure $(PYTEST) $(PARALLEL) $(REACHING) --junit-xml=build/pure.xml

interop: .venv/test .venv/kernel tests/interop/node_modules
	@$(TESTED) $(STAGE) interop $(PYTEST) $(PARALLEL) -m "interop and not slow" --junit-xml=build/interop.xml

bench: .venv/bench .venv/kernel build/loadgen
	$(BIN)/python -m benchmarks.run $(ARGS)

bench-mesh: .venv/test .venv/kernel build/loadgen
	for each in hops large_beside_small faults control_plane lanes; do $(BIN)/python -m benchmarks.$$each $(ARGS) || exit; done

build/loadgen: benchmarks/loadgen.c | .venv/test
	$(BIN)/python -m benchmarks.generator

docs: .venv/test .venv/kernel # the pages in build/docs; then what they say is compared with the code, and run
	$(BIN)/python -m sphinx -q -W --keep-going -n -d build/doctrees docs build/docs
	$(PYTEST) tests/docs tests/examples -m "not slow"

picture: .venv/test .venv/kernel # docs/pictures, the rooms from the imports; prints how many arrows lead upward
	$(BIN)/python -m docs.drawing

wheel: .venv/test # the source distribution, the wheel that is built from it, and whether that one runs
	rm -rf dist build/wheel
	$(BIN)/python -m build -o dist .
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip install -q dist/*.whl
	cd build/wheel && $(TESTED) bin/amqpmesh --version

clean:
	rm -rf .venv build dist tests/interop/node_modules router/kernel/*.so

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/base: pyproject.toml setup.py | .venv/bin/python
	$(BIN)/python -m pip install -q $(EDITABLE) -e .
	touch $@

# Proton's wheel has no SASL library, so its client knows no SCRAM: built here, it takes the one whose headers are here.
.venv/test: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install -q $(EDITABLE) -e '.[test]'
	[ ! -e /usr/include/sasl/sasl.h ] || $(BIN)/python -m pip install -q --no-cache-dir --no-deps --force-reinstall \
		--no-binary python-qpid-proton python-qpid-proton
	touch .venv/base $@

.venv/bench: .venv/test
	$(BIN)/python -m pip install -q $(EDITABLE) -e '.[bench]'
	touch $@

# What is installed above is compiled, too; but not again by that, when its source has changed.
.venv/kernel: setup.py $(wildcard router/kernel/*.py router/kernel/*.pxd) | .venv/base
	@AMQPMESH_KERNEL=compiled $(BIN)/python -c 'import amqpmesh.router.kernel' 2>/dev/null || $(BIN)/python -m pip install -q \
		--no-deps $$($(BIN)/python -c 'import Cython, setuptools; print("--no-build-isolation")' 2>/dev/null) $(EDITABLE) -e .
	touch $@

tests/interop/node_modules: tests/interop/package.json | .venv/test
	cd tests/interop && PATH="$(CURDIR)/$(BIN):$$PATH" npm install --no-audit --no-fund --no-package-lock
	touch $@
