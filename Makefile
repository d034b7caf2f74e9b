# SPDX-License-Identifier: Apache-2.0
#
# Every task of the project.  Each sets up what it needs: system packages by apt where they are missing, a virtual
# environment, the build.

PYTHON ?= python3
VENV ?= .venv
export PYTHON VENV

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

python := $(VENV)/bin/python
cpp_files = $(shell find cpp tests bench -name '*.h' -o -name '*.cc')
package_files = pyproject.toml CMakeLists.txt $(shell find cpp python -type f -not -name '*.pyc' -not -name '*.so')

# ThreadSanitizer of GCC 12 needs the address layout of older kernels; where a sandbox forbids to ask for it, go on.
fixed_layout = $(shell setarch $$(uname -m) -R true 2>/dev/null && echo setarch $$(uname -m) -R)

help:  ## this list
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 26

# --- set-up and build -------------------------------------------------------------------------------------------------

$(VENV)/.installed-%: pyproject.toml scripts/install
	@scripts/install $*

# The package, built and installed as a user would have it; the build tree is kept, so that a change costs seconds.
$(VENV)/.headrace: $(package_files) | $(VENV)/.installed-demo
	@echo "headrace: building the package (a minute or two the first time)"
	@$(python) -m pip install --quiet --disable-pip-version-check --no-build-isolation .
	@touch $@

setup: $(VENV)/.installed-demo  ## install what the build and the demo need

build: $(VENV)/.headrace  ## build the package and install it into .venv

demo: build  ## train a small model, serve it, show what batching did (KEEP=1: keep serving)
	@$(python) -m headrace demo $(if $(KEEP),--keep)

# --- tests ------------------------------------------------------------------------------------------------------------

test_stages := lint test-cpp test-asan test-tsan test-fuzz test-tsan-python test-python test-e2e

test: $(VENV)/.installed-test  ## everything that a change must pass
	@times=""; for stage in $(test_stages); do \
	  echo; echo "=== make $$stage"; start=$$SECONDS; \
	  $(MAKE) --no-print-directory $$stage; \
	  times+=$$(printf '%6d s  %s' $$((SECONDS - start)) $$stage)$$'\n'; \
	done; echo; echo "=== every stage passed"; echo -n "$$times"

lint: build $(VENV)/.installed-test  ## formatting, style and types
	$(VENV)/bin/clang-format --dry-run -Werror $(cpp_files)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(python) -m mypy.stubtest --allowlist tests/stubtest.txt headrace._core

format: $(VENV)/.installed-test  ## rewrite the sources as lint wants them
	$(VENV)/bin/clang-format -i $(cpp_files)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

test-cpp: $(VENV)/.installed-test  ## C++ tests and model checks, with assertions
	cmake --preset default
	cmake --build --preset default
	ctest --preset default

test-asan: $(VENV)/.installed-test  ## C++ tests under AddressSanitizer and UBSan
	cmake --preset asan
	cmake --build --preset asan
	ctest --preset asan

test-tsan: $(VENV)/.installed-test  ## C++ tests under ThreadSanitizer
	cmake --preset tsan
	cmake --build --preset tsan
	$(fixed_layout) ctest --preset tsan

# Inputs that were found before stay under build/fuzz/found; one that fails is written to build/fuzz/failed-*.
FUZZ_SECONDS ?= 600
fuzz_targets = $(patsubst tests/fuzz/%.cc,%,$(wildcard tests/fuzz/fuzz_*.cc))

fuzz: $(VENV)/.installed-test  ## libFuzzer on the message path, FUZZ_SECONDS=600 for each target
	cmake --preset fuzz
	cmake --build --preset fuzz
	build/fuzz/make_seeds build/fuzz/seeds
	@for target in $(fuzz_targets); do \
	  echo "$$target: $(FUZZ_SECONDS) seconds"; mkdir -p build/fuzz/found/$$target; \
	  build/fuzz/$$target -max_total_time=$(FUZZ_SECONDS) -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
	    -artifact_prefix=build/fuzz/failed-$$target- build/fuzz/found/$$target build/fuzz/seeds/$$target \
	    >build/fuzz/$$target.log 2>&1 || { tail -n 60 build/fuzz/$$target.log; exit 1; }; \
	  grep -E '^(Done|stat::number_of_executed_units)' build/fuzz/$$target.log; \
	done

test-fuzz:  ## the same for some seconds
	@$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=15

# Only over callables: TensorFlow does not run under ThreadSanitizer.
test-tsan-python: $(VENV)/.installed-test  ## the binding under ThreadSanitizer
	cmake --preset tsan -DHEADRACE_PYTHON=ON -DPython_EXECUTABLE=$(abspath $(python))
	cmake --build --preset tsan
	rm -rf build/tsan/site && mkdir build/tsan/site && cp -r python/headrace build/tsan/site/
	cmake --install build/tsan --prefix build/tsan/site >/dev/null
	LD_PRELOAD=$$($(or $(CXX),g++) -print-file-name=libtsan.so) OPENBLAS_NUM_THREADS=1 PYTHONPATH=build/tsan/site \
	  TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1 suppressions=tests/stress/tsan_suppressions.txt" \
	  $(fixed_layout) $(python) -m pytest -p no:cacheprovider tests/stress/test_callables_tsan.py

test-python: build $(VENV)/.installed-test  ## Python unit tests
	$(python) -m pytest tests/python

# gRPC C++, which shares nothing with grpcio and the package but the protocol; the tests that need it call for it.
build/independent_client: tests/grpc_cpp/independent_client.cc
	@mkdir -p $(@D)
	$(CXX) -std=c++17 -O1 -Wall -Wextra -Werror $< -o $@ -lgrpc++ -lgrpc -lgpr -labsl_synchronization

test-e2e: build $(VENV)/.installed-test  ## the server from outside
	$(python) -m pytest tests/e2e

# --- the wheel --------------------------------------------------------------------------------------------------------

platform = manylinux_2_36_$(shell uname -m)

wheel: $(VENV)/.installed-test  ## sdist and wheel, in dist/
	rm -rf dist build/dist
	$(python) -m build --no-isolation --outdir build/dist .
	PATH="$(abspath $(VENV))/bin:$$PATH" $(python) -m auditwheel repair --plat $(platform) --only-plat \
	  --wheel-dir dist build/dist/*.whl
	cp build/dist/*.tar.gz dist/

test-wheel: wheel  ## install the wheel into a fresh environment, serve with it, look at what it links
	$(python) -m pytest -m wheel tests/e2e/test_wheel.py

# TensorFlow 2.16 is the oldest supported; the oldest for Python 3.13 is 2.20.
oldest_tensorflow = tensorflow==$(shell $(PYTHON) -c 'import sys; print("2.16.*" if sys.version_info < (3, 13) else "2.20.*")')

# tensorflow-serving-api 2.16 does not import with the protobuf that TensorFlow 2.16 wants; `make test-python` compares
# our messages with the newest.
not_with_oldest = --deselect tests/python/test_proto.py::test_messages_have_tensorflow_servings_names_numbers_and_types

test-oldest-tf: wheel  ## the Python tests with the oldest TensorFlow supported
	VENV=.venv-oldest-tf TENSORFLOW="$(oldest_tensorflow)" scripts/install test
	.venv-oldest-tf/bin/python -m pip install --quiet --force-reinstall --no-deps dist/*.whl
	.venv-oldest-tf/bin/python -m pip install --quiet dist/*.whl "$(oldest_tensorflow)"
	.venv-oldest-tf/bin/python -m pytest tests/python tests/e2e $(not_with_oldest)

# --- measurements -----------------------------------------------------------------------------------------------------

bench: build $(VENV)/.installed-bench  ## microbenchmarks; results under bench/results
	$(python) -m bench.run

bench-embed: build $(VENV)/.installed-bench  ## the embedding API beside its rivals; results under bench/results
	$(python) -m bench.embed

bench-server: build $(VENV)/.installed-bench  ## the native server beside echoes; results under bench/results
	$(python) -m bench.server

clean:  ## remove what was built, keep the environments
	rm -rf build dist $(VENV)/.headrace

.PHONY: help setup build demo test $(test_stages) fuzz format wheel test-wheel test-oldest-tf bench bench-embed bench-server clean
