# A learner needs one command, `make lab`. `make test` runs the tests, and `make help` lists the rest.
.DEFAULT_GOAL := help
SHELL := /bin/sh

# The active conda or virtual environment, or our own .venv, or build/torch-2.14.1 with TORCH=2.14.1.
# Named only when a recipe asks.
PY = "$$(scripts/setup.sh --where)"
export PYTHON TORCH DRAWS FAULTS SESSIONS ROUNDS WHEELS

# Benchmarks, one after the other: each measures alone.
BENCHMARKS = startup training_step launchers ring replicas trace_overhead prediction watchdog checkpoint \
  sharded_optimizer fully_sharded low_communication

.PHONY: setup lab test test-all bank fault lint check bench gpu-proof build verify site corpus lock format clean help

setup: ## Put everything into .venv, or into the active environment. At once if done already.
	@scripts/setup.sh

lab: setup ## Open JupyterLab at lesson 00. More arguments: make lab ARGS="--port 9000"
	@$(PY) -m ddp_lessons.course.cli lab $(ARGS)

test: setup ## Run the tests. Some of them: make test ARGS="-k ring" or ARGS=tests/platform
	@$(PY) scripts/run_tests.py $(ARGS)

test-all: setup ## Run every test, part by part; goes on where it was ended. Takes two hours.
	@$(PY) scripts/run_tests.py --all $(ARGS)

bank: setup ## Try wrong answers to every task (timed ones: make test-all). A lesson: make bank ARGS="-k 03."
	@$(PY) scripts/run_tests.py tests/answers/bank -m "not alone" $(ARGS)

fault: setup ## Play faults on ranks: make fault ARGS=17 (a seed) or ARGS="--kind NAME 5".
	@PYTHONPATH="$$PWD:$$PWD/tests/support" $(PY) tests/support/random_faults.py $(ARGS)

lint: setup ## Format, lint, types, spelling and plain words.
	@$(PY) -m ruff format --check --quiet .
	@$(PY) -m ruff check --quiet .
	@$(PY) -m mypy --no-error-summary
	@$(PY) -m codespell_lib
	@$(PY) scripts/check_words.py

check: lint test ## The one command before a commit: lint and test.

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

corpus: setup ## Record anew the logs and stacks that tasks 09.4 and 10.1 read, under this torch.
	@$(PY) scripts/corpus/record.py $(ARGS)

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
