# Two commands are all a learner needs: `make lab` and `make test`. `make help` lists the rest.
.DEFAULT_GOAL := help
SHELL := /bin/sh

# The active conda or virtual environment, or our own .venv. Named only when a recipe asks.
PY = "$$(scripts/setup.sh --where)"
export PYTHON TORCH DRAWS FAULTS SESSIONS ROUNDS WHEELS

# Half of the tests' time is waiting, so four at a time keep two cores busy.
WORKERS = --numprocesses=4 --dist=loadgroup --no-loadscope-reorder

# Tests of what a learner reads as a textbook: `make coverage` runs them.
SUBJECT_TESTS = $(foreach part,costs trace pictures process_group collectives ring samplers \
  replicas ddp accumulation checkpoint launch hangs speed metrics sharded_optimizer asynchronous \
  beyond_ddp frameworks many_machines workloads pitfalls,\
  $(wildcard tests/test_$(part)*.py))

# Benchmarks, one after the other: each measures alone.
BENCHMARKS = startup training_step launchers ring replicas trace_overhead prediction watchdog checkpoint \
  sharded_optimizer fully_sharded low_communication

.PHONY: setup lab test around bank coverage soak check bench gpu-proof build verify site lock format clean help

setup: ## Put everything into .venv, or into the active environment. At once if done already.
	@scripts/setup.sh

lab: setup ## Open JupyterLab at lesson 00. More arguments: make lab ARGS="--port 9000"
	@$(PY) -m ddp_lessons.course.cli lab $(ARGS)

test: setup ## Run the tests, four at a time. Some of them: make test ARGS="-k ring"
	@$(PY) -m pytest $(WORKERS) $(ARGS)

around: setup ## Test what stands round the lessons: rooms, boards, packages, other machines.
	@$(PY) -m pytest $(WORKERS) -m around $(ARGS)

bank: setup ## Try every wrong answer to every task. Of a lesson: make bank ARGS="-k 03."
	@$(PY) -m pytest $(WORKERS) tests/test_wrong_answers.py $(ARGS)

coverage: setup ## Hold the tests of the subject to every line of it that needs no GPU.
	@$(PY) -m coverage erase
	@printf '%s\n' $(SUBJECT_TESTS) | \
	  xargs -n 8 -P 3 $(PY) -m coverage run -m pytest --quiet $(ARGS)
	@$(PY) -m coverage combine --quiet
	@$(PY) -m coverage report

soak: setup ## Run what takes long: lessons in a crowd, random faults. More: make soak FAULTS=1000
	@$(PY) -m pytest -m soak $(ARGS)

check: setup ## Format, lint, types, spelling, tests: the one command before a commit.
	@$(PY) -m ruff format --check --quiet .
	@$(PY) -m ruff check --quiet .
	@$(PY) -m mypy --no-error-summary
	@$(PY) -m codespell_lib
	@$(PY) -m pytest $(WORKERS) -m "not soak" $(ARGS)

bench: setup ## Measure what must be fast. One only: make bench BENCHMARKS=ring ARGS="--no-fail"
	@status=0; for name in $(BENCHMARKS); do \
	  echo "== $$name"; $(PY) benchmarks/$$name.py $(ARGS) || status=1; \
	done; exit $$status

gpu-proof: ## Prove the course on this machine's GPUs. Offline: PYTHON=python3 WHEELS=folder.
	@scripts/gpu_proof.sh $(ARGS)

build: setup ## Rebuild notebooks from their text. Some of them: make build ARGS=00_ranks
	@$(PY) -m ddp_lessons.course build $(ARGS)

verify: setup ## Run notebooks and compare every stored output.
	@$(PY) -m ddp_lessons.course verify $(ARGS)

site: setup ## Build the site into build/site, to be read in a browser: no network, no server.
	@$(PY) docs/site/build_site.py

lock: ## Write requirements.lock anew, from the newest versions that fit.
	@scripts/lock.sh

format: setup ## Format the code, and mend what the linter can mend.
	@$(PY) -m ruff format --quiet .
	@$(PY) -m ruff check --fix --quiet .

clean: ## Remove .venv, caches and screenshots. No lesson is touched.
	rm -rf .venv .lock-venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache \
	  .hypothesis .coverage htmlcov tests/browser/screenshots
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name .ipynb_checkpoints -type d -prune -exec rm -rf {} +

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
