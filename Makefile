# Two commands need nothing but python3 (>= 3.10), make and g++:  make demo,  make test.  `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
CMAKE := $(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja)
JOBS := $(shell nproc)
CXX_FILES = $(shell git ls-files -co --exclude-standard 'csrc/*.cc' 'csrc/*.h' 'csrc/*.cu' 'tests/**/*.cc' 'tests/**/*.h')

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | while IFS='|' read -r name text; do printf '  make %-16s %s\n' "$$name" "$$text"; done

# --- environment: stamp files in .venv; a change of pyproject.toml or setup.py runs pip again -----------------------
export PYTHON
$(VENV)/tools: pyproject.toml tests/tools/bootstrap.sh
	@echo "== $(VENV): build tools"
	@tests/tools/bootstrap.sh $(VENV)
	@$(PIP) --upgrade pip
	@$(PIP) $$($(BIN)/python tests/tools/requirements.py)
	@touch $@

# pip shows nothing while it works: the first run compiles the core and fetches torch.
$(VENV)/demo $(VENV)/dev $(VENV)/bench $(VENV)/frameworks: $(VENV)/%: $(VENV)/tools setup.py
	@echo "== $(VENV): ringreduce[$*] (the first time takes a few minutes)"
	@mkdir -p build
	@flock build/lock $(PIP) --no-build-isolation -e '.[$*]'
	@touch $@

# The bench takes any torch; figures are compared with one.
$(VENV)/bench: $(VENV)/demo

# tf_keras wants the package tensorflow, whose files tensorflow-cpu has.
$(VENV)/keras2: $(VENV)/frameworks
	@$(PIP) --no-deps tf_keras==2.21.0
	@touch $@

# What Horovod's own tests import, besides the frameworks.
$(VENV)/horovod-tests: $(VENV)/keras2
	@$(PIP) parameterized==0.9.0
	@touch $@

# With the options of `make build`: what pip compiles is not compiled again.
build-options := -DRR_WERROR=ON -DRR_TESTS=ON
$(VENV)/dev: export RR_CMAKE_ARGS := $(build-options)
$(VENV)/dev: $(VENV)/doctest

$(VENV)/doctest: tests/tools/bootstrap.sh
	@tests/tools/bootstrap.sh $(VENV) doctest
	@touch $@

# --- building -------------------------------------------------------------------------------------------------------
# Ninja decides what to compile. Options that change nothing in the module stay in build/cmake (setup.py): after
# `make build`, `make demo` keeps -Werror.
compile = flock build/lock $(BIN)/python setup.py --quiet build_ext --inplace > build/log 2>&1 || { cat build/log; exit 1; }

build: $(VENV)/dev  ## (re)build ringreduce._core in place, with the C++ tests, warnings are errors
	@mkdir -p build
	@RR_CMAKE_ARGS="$(build-options)" $(compile)

build-demo: $(VENV)/demo
	@mkdir -p build
	@$(compile)

wheel: $(VENV)/tools  ## build a wheel in dist/
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation -w dist .
	@ls -l dist/*.whl

PYTHONS ?= $(shell for n in 10 11 12 13 14; do python3.$$n -c pass 2> /dev/null && echo python3.$$n; done; true)
wheels:  ## build a wheel in dist/ for each Python from 3.10 on in PATH (PYTHONS="python3.12 python3.13")
	@mkdir -p build
	@for python in $(PYTHONS); do flock build/lock $$python -m pip wheel --quiet --no-deps -w dist .; done
	@ls -l dist/*.whl

# --- the two commands -----------------------------------------------------------------------------------------------
demo: build-demo  ## train LeNet on Fashion-MNIST on two ranks, compare with one
	@$(BIN)/python examples/demo.py

# Each part's seconds are printed beside its budget, tests/budget.json.
TEST_PARTS := build lint cpptest mutation-sample sanitize pytest test-frameworks
test:  ## everything: build, lint, C++ tests, a sample of mutations, sanitizers, Python tests, those of TensorFlow, Keras and JAX
	@$(PYTHON) tests/tools/parts.py $(TEST_PARTS)

check: $(VENV)/dev  ## what has changed since the last commit: build it, lint it, run its quick tests (half a minute)
	@$(BIN)/python tests/tools/check.py $(ARGS)

# What `make test` runs a sample of, in full length.
test-long: build  ## a million random operations and handshakes, a thousand killed ranks, a thousand starts, torch's own tests (an hour and a quarter)
	@$(CMAKE) -S . -B build/plain $(build-options) -DRR_PYTHON=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON > /dev/null
	@$(BIN)/cmake --build build/plain --parallel $(JOBS) --target rr_tests > /dev/null  # each file includes what it uses
	@RR_TEST_ROUNDS=17000 build/cmake/tests/cpp/rr_tests --source-file='*/stress*_test.cc' --no-version
	@RR_TEST_ROUNDS=1000000 build/cmake/tests/cpp/rr_tests --source-file='*/handshake_fuzz_test.cc,*/records_test.cc' --no-version
	@RR_TEST_ROUNDS=250000 build/cmake/tests/cpp/rr_tests --source-file='*/frames_test.cc' --no-version
	@RR_TEST_ROUNDS=10000 build/cmake/tests/cpp/rr_tests --source-file='*/tcp_faults_test.cc' --no-version
	@RR_TEST_KILLS=1000 RINGREDUCE_TEST_SCALE=10 $(BIN)/python -m pytest tests/python/job/test_kill.py tests/python/job/test_rounds.py
	@$(BIN)/python -m pytest -m long
	@$(MAKE) test-torch-suite
	@$(MAKE) test-torch-suite ARGS=--tcp

lint: lint-python lint-cpp  ## ruff, mypy --strict, stubtest, clang-format

lint-python: build
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/stubtest ringreduce._core --concise --allowlist tests/tools/stubtest.allow

lint-cpp: $(VENV)/dev
	@$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)

format: $(VENV)/dev  ## rewrite sources as lint wants them
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format --quiet .
	@$(BIN)/clang-format -i $(CXX_FILES)

# More tests than cores: ranks often wait for a time that a test wants to pass (on 2 cores 8 at once: 44 s, 14: 34, 20: 33),
# under sanitizers a smaller part of it.
spare-tests := 12
sanitize-%: spare-tests := 4
CTEST = $(BIN)/ctest --output-on-failure --progress --parallel $$(($(JOBS) + $(spare-tests)))
cpptest: build  ## C++ tests
	@$(CTEST) --test-dir build/cmake

mutation: build $(VENV)/frameworks $(VENV)/keras2  ## break the program in every row of tests/tools/mutations: the tests must notice (ARGS="int8-scale")
	@$(BIN)/python tests/tools/mutation.py $(ARGS)

mutation-sample: build $(VENV)/frameworks $(VENV)/keras2  ## likewise, in five rows that are others each time
	@$(BIN)/python tests/tools/mutation.py --sample 5

# Side by side: many of these tests wait, and compute nothing meanwhile.
sanitize:  ## C++ tests under address+undefined and under thread sanitizers
	@$(MAKE) --jobs=2 --output-sync=target sanitize-address sanitize-thread

# The thread sanitizer cannot map its shadow where the kernel randomises addresses widely: turn that off where allowed.
FIXED_MAP := $(shell setarch -R true 2>/dev/null && echo setarch -R)
# Races lie in who touches what when, not in the instruction set: one kernel file will do.
sanitize-options-thread := -DRR_X86_KERNELS=OFF
# The thread sanitizer needs to see the tests, which are the ranks; the address sanitizer needs to see the core.
sanitize-options-address := -DRR_TEST_OBJECTS=$(abspath build/cmake)
sanitize-address: build
sanitize-%: $(VENV)/doctest $(VENV)/tools
	@mkdir -p build
	@{ $(CMAKE) -S . -B build/$* -DRR_SANITIZE=$* -DRR_TESTS=ON -DRR_WERROR=ON -DRR_PYTHON=OFF $(sanitize-options-$*) && \
	  $(BIN)/cmake --build build/$* --parallel $(JOBS); } > build/$*.log 2>&1 || { cat build/$*.log; exit 1; }
	@$(FIXED_MAP) $(CTEST) --test-dir build/$*

# TensorFlow, Keras and JAX are 1 GB: what needs them is a part of its own, and installs them.
FRAMEWORK_TESTS := $(addprefix tests/python/,tensorflow keras jax bench/test_bench_train_frameworks.py)

# One worker more than cores: with two cores 442 s, where two workers take 494. ARGS="-n0": one test after the other.
# OMP_WAIT_POLICY, OPENBLAS_NUM_THREADS: threads that wait for work would keep the cores from the other workers' ranks.
# startup/: imports of frameworks in half of the time.
PYTEST = OMP_WAIT_POLICY=PASSIVE OPENBLAS_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/tests/support/startup$${PYTHONPATH:+:$$PYTHONPATH} \
  $(BIN)/python -m pytest -n $$(($(JOBS) + 1)) --dist worksteal
pytest: build  ## Python tests but for test-frameworks (make pytest ARGS="-k allreduce")
	@$(PYTEST) $(FRAMEWORK_TESTS:%=--ignore=%) $(ARGS)

test-frameworks: build $(VENV)/frameworks $(VENV)/keras2  ## Python tests of ringreduce.tensorflow, .keras and .jax
	@$(PYTEST) $(FRAMEWORK_TESTS) $(ARGS)

test-torch-suite: build  ## torch's own tests of torch.distributed, with our backend (12 minutes; ARGS="all_gather"; over TCP: ARGS=--tcp)
	@$(BIN)/python tests/torch_suite/run.py $(ARGS)

test-horovod-suite: build $(VENV)/horovod-tests  ## Horovod's own tests, on ringreduce under the name horovod (HOROVOD=its checkout; ARGS="test_torch.py")
	@test -n "$(HOROVOD)" || { echo "say where Horovod is: git clone https://github.com/horovod/horovod, make test-horovod-suite HOROVOD=horovod"; exit 2; }
	@$(BIN)/python tests/horovod_suite/run.py $(HOROVOD) $(ARGS)

# --- the rest -------------------------------------------------------------------------------------------------------
bench: $(VENV)/bench build-demo  ## measure everything beside every peer that is here; writes docs/results/ (half an hour)
	@$(BIN)/python benchmarks/record.py $(ARGS)

compare: $(VENV)/bench  ## what became slower since a commit, both builds in turns: OLD=COMMIT [NEW=COMMIT] (20 minutes; ARGS=--quick: two)
	@$(BIN)/python benchmarks/compare.py $(OLD) $(NEW) $(ARGS)

gpu-check:  ## on a machine with a GPU: build by its own python, run and sanitize everything CUDA, measure (PYTHON=python3; 8 minutes)
	@$(PYTHON) benchmarks/gpu.py $(ARGS)

bench-network: $(VENV)/bench build-demo  ## all-reduce across four shaped hosts beside MPI, Gloo and the links' limit (root; 6 minutes)
	@$(BIN)/python benchmarks/network.py $(ARGS)

optional:  ## install what tests otherwise skip by name: Debian's MPIs, ssh for the lab, Slurm (root)
	@tests/tools/optional.sh

test-torch-versions: build-demo  ## run ringreduce.torch on the oldest and the newest torch that pip offers (downloads 1.2 GB)
	@$(BIN)/python tests/tools/torch_versions.py $(ARGS)

docs: build  ## write docs/reference/knobs.md from the table of knobs in the core
	@$(BIN)/python tests/tools/knobs.py docs/reference/knobs.md

clean:  ## remove everything that was built or installed here
	rm -rf build dist *.egg-info $(VENV) ringreduce/*.so .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help optional build build-demo wheel wheels demo test check test-long test-torch-suite test-torch-versions lint lint-python lint-cpp format cpptest mutation mutation-sample sanitize pytest test-frameworks bench bench-network compare gpu-check docs clean
