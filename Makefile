# make run    a virtual environment with the base package only, and a router at amqp://127.0.0.1:5672
# make demo   five routers, one of which is killed while messages cross their mesh
# make test   everything set up, then all checks but the slow ones; make check is its first part, without clients
# make slow   loads and soaks, minutes each
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -q
# As many processes as there are cores, but few enough for tests that start programs of their own.
PARALLEL := -n auto --maxprocesses 4 --dist worksteal
# A path, not an import hook: type checkers follow the one and do not see the other.
EDITABLE := --config-settings editable_mode=compat
STAGE := .ci/stage

.PHONY: run demo test check slow lint format types imports unit interop bench docs clean begin
.NOTPARALLEL:

run: .venv/base
	@$(BIN)/amqpmesh run $(ARGS)

demo: .venv/base
	@$(BIN)/amqpmesh demo $(ARGS)

test: begin lint types imports unit interop
	@$(STAGE)

check: begin lint types imports unit
	@$(STAGE)

slow: begin .venv/test tests/interop/node_modules
	@$(STAGE) slow $(PYTEST) -m slow --junit-xml=build/slow.xml
	@$(STAGE)

begin:
	@rm -rf build/stages build/*.xml

lint: .venv/test
	@$(STAGE) lint sh -c '$(BIN)/ruff check . && $(BIN)/ruff format --check .'

format: .venv/test
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

types: .venv/test
	@$(STAGE) types sh -c '$(BIN)/mypy && $(BIN)/mypy examples/*.py'

imports: .venv/test
	@$(STAGE) imports $(BIN)/lint-imports --no-cache --no-logo

unit: .venv/test
	@$(STAGE) unit $(PYTEST) $(PARALLEL) --junit-xml=build/unit.xml

interop: .venv/test tests/interop/node_modules
	@$(STAGE) interop $(PYTEST) $(PARALLEL) -m interop --junit-xml=build/interop.xml

bench: .venv/test
	for each in run hops large_beside_small faults control_plane lanes; do $(BIN)/python -m benchmarks.$$each $(ARGS) || exit; done

docs: .venv/test # the pages in build/docs; then what they say is compared with the code, and run
	$(BIN)/python -m sphinx -q -W --keep-going -n -d build/doctrees docs build/docs
	$(PYTEST) tests/docs tests/examples -m "not slow"

clean:
	rm -rf .venv build tests/interop/node_modules

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/base: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install -q $(EDITABLE) -e .
	touch $@

# Proton's wheel has no SASL library, so its client knows no SCRAM: built here, it takes the one whose headers are here.
.venv/test: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install -q $(EDITABLE) -e '.[test]'
	[ ! -e /usr/include/sasl/sasl.h ] || $(BIN)/python -m pip install -q --no-cache-dir --no-deps --force-reinstall \
		--no-binary python-qpid-proton python-qpid-proton
	touch .venv/base $@

tests/interop/node_modules: tests/interop/package.json | .venv/test
	cd tests/interop && PATH="$(CURDIR)/$(BIN):$$PATH" npm install --no-audit --no-fund --no-package-lock
	touch $@
