# privml: `make demo` and `make test` are all a newcomer needs; `make help` lists the rest.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

BIN := .venv/bin
WORKERS ?= 2
ARGS ?=
# The stamps carry the folder's checksum, so that a copied or moved checkout sets itself up again.
HERE := $(shell pwd -P | cksum | cut -d' ' -f1)
PACKAGES := .venv/.packages-$(HERE)
LIBRARY := .venv/.stamp-native-$(HERE)
FHE_BIN := .venv-fhe/bin
FHE_PACKAGES := .venv-fhe/.packages-$(HERE)
# What needs concrete-python, TenSEAL or jpeglib; elsewhere these tests skip those parts.
FHE_TESTS := $(wildcard tests/*/test_fhe_*.py tests/*/test_he_*.py tests/*/test_jpeg*.py \
	tests/*/test_frequency*.py)
NATIVE := $(wildcard CMakeLists.txt cmake/*) \
	$(shell find protocols unlearning valuation privml -type f \
		\( -name '*.cpp' -o -name '*.hpp' -o -name '*.h' -o -name '*.cu' -o -name CMakeLists.txt \))

.PHONY: help setup setup-fhe demo test test-fhe test-nightly lint format types docs coverage sanitize ci freeze clean distclean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(PACKAGES): pyproject.toml constraints.txt .ci/setup .ci/requirements.py
	@bash .ci/setup packages
	@touch $@

$(LIBRARY): $(PACKAGES) $(NATIVE)
	@bash .ci/setup library
	@touch $@
	@echo '[setup] ready'

setup: $(LIBRARY)  ## create .venv, install, build the native library (the others do it when needed)

$(FHE_PACKAGES): $(PACKAGES) constraints-fhe.txt .ci/fhe-env
	@bash .ci/fhe-env
	@touch $@

setup-fhe: setup $(FHE_PACKAGES)  ## create .venv-fhe on top of .venv: encrypted images

demo: setup  ## classify sentences that the model's owner never sees
	@$(BIN)/privml demo $(ARGS)

test: setup  ## run the tests (ARGS="-k name" for a part of them)
	@$(BIN)/pytest -n $(WORKERS) $(ARGS)

test-fhe: setup-fhe  ## run the tests of encrypted images, with real ciphertexts
	@$(FHE_BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(FHE_TESTS) $(ARGS)

test-nightly: setup  ## run the long searches and statistics as well
	@$(BIN)/pytest -n $(WORKERS) -m "nightly or not nightly" --hypothesis-profile=nightly --timeout=3600 $(ARGS)

lint: setup  ## ruff, import contracts, source rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@NO_COLOR=1 $(BIN)/lint-imports --no-logo
	@$(BIN)/pytest -q -p no:randomly tests/unit/test_source_rules.py tests/unit/test_repository_text.py

format: setup  ## let ruff lay out the code
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

types: setup  ## mypy, strict
	@$(BIN)/mypy -p privml

docs: setup  ## build the documentation into site/, warnings are errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo 'docs: site/index.html'

coverage: setup  ## run the tests and report uncovered lines and branches
	@$(BIN)/pytest -n $(WORKERS) --cov --cov-report=term-missing:skip-covered $(ARGS)

sanitize: setup  ## build the native forest with sanitisers, elsewhere, and run its tests
	@bash .ci/sanitize $(ARGS)

ci: setup  ## everything that decides whether a change is good
	@bash .ci/run

freeze: setup  ## rewrite constraints.txt from what .venv holds
	@sed -n '/^#/p' constraints.txt > .venv/constraints.new
	@$(BIN)/python -m pip freeze --exclude-editable \
		| sed -e '/^privml/d' -e 's/^\(torch==[^+]*\)+.*/\1/' >> .venv/constraints.new
	@mv .venv/constraints.new constraints.txt

clean:  ## remove build outputs and caches, keep .venv
	@rm -rf build dist site _skbuild *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		.import_linter_cache .coverage .coverage.* $(LIBRARY)
	@find . -path './.venv*' -prune -o -path ./.git -prune -o \
		\( -name __pycache__ -o -name 'libprivml*.so' \) -exec rm -rf {} +

distclean: clean  ## remove .venv as well
	@rm -rf .venv .venv-fhe
