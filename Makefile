# Two commands on a machine with nothing but Python and make: `make demo`, `make test`.
# Neither needs root, Docker or a Redis: the embedded server is the default.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
REDIS8_READY := .venv-redis8/ready
CLIENT_TESTS := $(patsubst %,tests/integration/test_%.py,client connection endpoint listing pubsub watching)
# processes that the tests run in: most of their time is spent waiting for a server
JOBS ?= 4
# what is in the image, in the versions that were tested
LIKE_CI := --no-annotate --constraint constraints.txt
IMAGE_EXTRAS := --extra worker --extra metrics --extra otel
# for how long faults come in `make chaos`
SECONDS ?= 120

.DEFAULT_GOAL := help
.PHONY: help demo test test-redis8 lint types docs package quickstart check format chaos bench profile lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## run the main job: two workers, 51 workflows, one worker killed half-way
	$(BIN)/memable demo

test: $(READY) ## run every test, in random order, against the embedded server
	$(BIN)/python -m pytest -n $(JOBS) $(TESTS)

test-redis8: $(REDIS8_READY) ## run the client's tests with redis-py 8, as web apps have it
	.venv-redis8/bin/python -m pytest -n $(JOBS) $(CLIENT_TESTS)

lint: $(READY) ## check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## check types with mypy --strict and pyright
	$(BIN)/mypy
	$(BIN)/pyright

docs: $(READY) ## build the site of docs/ into build/site: a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

package: $(READY) ## build the wheel and the sdist into build/dist
	rm -rf build/dist
	$(BIN)/python -m hatchling build -d build/dist

quickstart: package ## do what docs/quick-start.md says, in an empty environment, with the wheel and what pip brings
	$(BIN)/python -m tests.quick_start build/dist/*.whl

check: lint types docs test test-redis8 ## what CI runs: lint, types, the site, tests

format: $(READY) ## format the code, and mend what ruff can
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

chaos: $(READY) ## kill, stop and cut off for SECONDS (by SEED), and count what was lost
	$(BIN)/python -m chaos --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

bench: $(READY) ## measure all, beside the floor and five job queues, into docs/performance.md
	$(BIN)/python -m benchmarks --page $(OPTIONS)

profile: $(READY) ## show the hottest functions of a worker under load
	$(BIN)/python -m benchmarks.profile $(OPTIONS)

lock: ## pin the newest versions that pyproject.toml allows into constraints*.txt
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet uv
	$(call compile,constraints.txt,--extra dev pyproject.toml)
	$(call compile,constraints-redis8.txt,--extra embedded --group redis8 pyproject.toml)
	$(call compile,deploy/requirements.txt,$(LIKE_CI) $(IMAGE_EXTRAS) pyproject.toml deploy/requirements.in)
	echo hatchling > build/lock/build.in
	$(call compile,deploy/requirements-build.txt,$(LIKE_CI) build/lock/build.in)

# the comment at the top of the file $(1), and then what uv makes of $(2)
define compile
	sed -n '/^#/!q;p' $(1) > build/lock/head
	build/lock/bin/uv pip compile --no-config --quiet --universal --python-version 3.11 --generate-hashes --upgrade \
		--no-header --no-emit-index-url --no-emit-find-links $(2) --output-file build/lock/pins
	cat build/lock/head build/lock/pins > $(1)
endef

clean: ## remove the environment and everything generated
	rm -rf .venv .venv-redis8 build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The stamp is written last: an installation that broke off is begun anew. --clear, since a half-made or moved .venv
# cannot be mended. --no-deps twice: constraints.txt names everything, and with hashes nothing else may come in.
$(READY): constraints.txt
	$(call install,.venv,constraints.txt)
	@touch $@

$(REDIS8_READY): constraints-redis8.txt
	$(call install,.venv-redis8,constraints-redis8.txt)
	@touch $@

define install
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "memable needs Python 3.11 or later: make PYTHON=python3.12")'
	$(PYTHON) -m venv --clear $(1)
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $(2)
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	$(1)/bin/python -m pip check
endef
