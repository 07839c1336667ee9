# make run    install the base package in .venv, and run a router at amqp://127.0.0.1:5672
# make demo   run a mesh of five routers, and kill one of them while it carries messages
# make check  lint, types, import contracts, unit tests
# make test   make check, tests on Spark, and tests with other AMQP clients
# make spark  tests on Spark, in one session; a part of make test
# make slow   load tests and soak tests (minutes each), and tests on a Spark cluster
# make uncompiled  unit and client tests of rooms that use the kernel, with the kernel in plain Python; make pure: those near the kernel
# make bench  benchmarks of one router beside byte forwarders; make bench-mesh: benchmarks of a mesh
# make wheel  build the wheel in dist/, with the kernel compiled
PYTHON ?= python3
PLATFORM ?= manylinux_2_36_$(shell uname -m) # of the wheel: the C library of Debian 12
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -q
# One process more than cores, four at most: some tests wait for a second of the clock, some start programs of their own.
PARALLEL = -n $(shell cores=$$(nproc); echo $$((cores < 4 ? cores + 1 : 4))) --dist worksteal
# Tests with other programs spend a part of their time waiting for them.
WAITING := -n 3 --dist worksteal
# The kernel is translated once, and not by each installation that is tried.
export CYTHON_CACHE_DIR := $(CURDIR)/build/cython
# A .pth file, not an import hook: type checkers follow a .pth file, but not a hook.
EDITABLE := --config-settings editable_mode=compat
STAGE := .ci/stage
# With a C compiler and Python's headers, the tests use the compiled kernel, or fail.
HEADERS = $(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
TESTED = AMQPMESH_KERNEL=$(if $(shell command -v $(CC)),$(if $(wildcard $(HEADERS)),compiled))
PURE := AMQPMESH_KERNEL=pure
# What `make uncompiled` leaves out: tests that use no kernel, and those that are about something else, such as pages, processes, logins
# and configuration.
KERNELLESS := $(foreach each,ci deploy docs typing policies benchmarks spec examples router/audit router/cli router/config router/http \
	router/logs router/management router/tokens topology/simulation/test_certificates.py topology/simulation/test_fixtures.py \
	topology/simulation/test_log.py,--ignore=tests/$(each)) --ignore-glob="tests/topology/test_*" --ignore-glob="tests/pipeline/test_*" \
	$(foreach each,amqp_over_http applying asked_users audit connectors http listeners passwords policy shared tenant telemetry tls \
	token users websocket,--ignore-glob="tests/router/runtime/test_$(each)*")
MESSAGELESS := $(foreach each,brokers test_command_line.py test_exactly_once.py test_exports.py test_management.py test_mesh_faults.py test_page.py test_policy.py \
	test_policy_push.py test_rolling_restart.py test_security.py test_tokens.py test_upgrade.py test_websockets.py,--ignore=tests/interop/$(each))
# Tests of the kernel and of its callers.
REACHING := tests/router/kernel tests/router/delivery
# The folders of tests on Spark, and of those with other clients: to collect all folders takes 14 s.
ON_SPARK := tests/pipeline tests/router/cli/commands
WITH_OTHERS := tests/interop tests/typing tests/examples

# Runs two stages at a time: each of these leaves a core idle for much of its time. A stage prints everything at its end.
BESIDE = @$(MAKE) --no-print-directory -j 2 --output-sync=target TOGETHER=1

.PHONY: run demo test check slow uncompiled lint format types imports collect unit spark pure interop static clients \
	bench bench-mesh docs picture wheel clean begin
ifndef TOGETHER
.NOTPARALLEL:
endif

run: .venv/base .venv/kernel
	@$(BIN)/amqpmesh run $(ARGS)

demo: .venv/base .venv/kernel
	@$(BIN)/amqpmesh demo $(ARGS)

test: begin static unit clients
	@$(STAGE)

check: begin static unit
	@$(STAGE)

static: .venv/test .venv/kernel
	$(BESIDE) collect types lint imports

clients: .venv/test .venv/kernel tests/interop/node_modules
	$(BESIDE) interop spark

slow: begin .venv/test .venv/kernel tests/interop/node_modules
	@$(TESTED) $(STAGE) slow $(PYTEST) -n auto --maxprocesses 2 --dist loadfile --timeout 1200 -m slow --junit-xml=build/slow.xml
	@$(STAGE)

uncompiled: begin .venv/test tests/interop/node_modules
	@$(PURE) $(STAGE) unit $(PYTEST) $(PARALLEL) $(KERNELLESS) --junit-xml=build/unit-uncompiled.xml
	@$(PURE) $(STAGE) interop $(PYTEST) $(WAITING) -m "interop and not slow" $(filter-out tests/typing tests/examples,$(WITH_OTHERS)) $(MESSAGELESS) --junit-xml=build/interop-uncompiled.xml
	@$(STAGE)

begin:
	@rm -rf build/stages build/*.xml

lint: .venv/test
	@$(STAGE) lint sh -c '$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/python .ci/house.py && $(BIN)/codespell'

format: .venv/test
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

types: .venv/test
	@$(STAGE) types sh -c '$(BIN)/mypy && $(BIN)/mypy examples/*.py'

imports: .venv/test
	@$(STAGE) imports $(BIN)/lint-imports --no-cache --no-logo

# In a new checkout this compiles all tests, once: else each process of `unit` does that, 20 s each.
collect: .venv/test .venv/kernel
	@$(TESTED) $(STAGE) collect sh -c '$(PYTEST) --collect-only >build/collected || { tail -n 50 build/collected; exit 1; }'

unit: .venv/test .venv/kernel
	@$(TESTED) $(STAGE) unit $(PYTEST) $(PARALLEL) --junit-xml=build/unit.xml

# One process, because a Spark session takes some seconds to start and a gigabyte of memory.
spark: .venv/test .venv/kernel
	@$(TESTED) $(STAGE) spark $(PYTEST) -m "spark and not slow" $(ON_SPARK) --junit-xml=build/spark.xml

pure: .venv/test
	@$(PURE) $(STAGE) pure $(PYTEST) $(PARALLEL) $(REACHING) --junit-xml=build/pure.xml

interop: .venv/test .venv/kernel tests/interop/node_modules
	@$(TESTED) $(STAGE) interop $(PYTEST) $(WAITING) -m "interop and not slow" $(WITH_OTHERS) --junit-xml=build/interop.xml

bench: .venv/bench .venv/kernel build/loadgen
	$(BIN)/python -m benchmarks.run $(ARGS)

bench-mesh: .venv/test .venv/kernel build/loadgen
	for each in hops large_beside_small faults control_plane lanes; do $(BIN)/python -m benchmarks.$$each $(ARGS) || exit; done

build/loadgen: benchmarks/loadgen.c benchmarks/clients.c benchmarks/amqp.h | .venv/test
	$(BIN)/python -m benchmarks.generator

docs: .venv/test .venv/kernel # build the pages in build/docs, then run the tests that compare them with the code
	$(BIN)/python -m sphinx -q -W --keep-going -n -d build/doctrees docs build/docs
	$(PYTEST) tests/docs tests/examples -m "not slow"

picture: .venv/test .venv/kernel # draw docs/pictures from imports, tables of states, and committed figures; print the number of upward arrows
	$(BIN)/python -m docs.drawing

wheel: .venv/test # build the source distribution, build the wheel from it, mark it for all systems with this C library, and try it
	rm -rf dist build/wheel
	$(BIN)/python -m build -o build/wheel/dist .
	mkdir dist && cp build/wheel/dist/*.tar.gz dist
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m auditwheel repair --plat $(PLATFORM) --wheel-dir dist build/wheel/dist/*.whl
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

# Proton's wheel has no SASL library, so its client has no SCRAM. A build from source uses the SASL library of this system.
.venv/test: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install -q $(EDITABLE) -e '.[test]'
	[ ! -e /usr/include/sasl/sasl.h ] || $(BIN)/python -m pip install -q --no-cache-dir --no-deps --force-reinstall \
		--no-binary python-qpid-proton python-qpid-proton
	touch .venv/base $@

.venv/bench: .venv/test
	$(BIN)/python -m pip install -q $(EDITABLE) -e '.[bench]'
	touch $@

# The installation above compiles the kernel once. This rule compiles it again when its source has changed.
.venv/kernel: setup.py $(wildcard router/kernel/*.py router/kernel/*.pxd) | .venv/base
	@AMQPMESH_KERNEL=compiled $(BIN)/python -c 'import amqpmesh.router.kernel' 2>/dev/null || $(BIN)/python -m pip install -q \
		--no-deps $$($(BIN)/python -c 'import Cython, setuptools; print("--no-build-isolation")' 2>/dev/null) $(EDITABLE) -e .
	touch $@

tests/interop/node_modules: tests/interop/package.json | .venv/test
	cd tests/interop && PATH="$(CURDIR)/$(BIN):$$PATH" npm install --no-audit --no-fund --no-package-lock
	touch $@
