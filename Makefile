# make demo, make test: each sets everything up by itself and writes nothing outside this folder but uv's cache.

UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
RUN = $(UV) run --frozen --all-extras --
# What libraries keep for themselves (fonts, rendered glyphs, pyright's program) stays in this folder.
HERE = env "XDG_CACHE_HOME=$(CURDIR)/.cache" "MPLCONFIGDIR=$(CURDIR)/.cache/matplotlib"

.PHONY: demo test lint types setup

demo: setup
	@$(RUN) $(HERE) proxemic demo
	@echo "In this folder, proxemic is .venv/bin/proxemic."

# Two workers of one thread each: with more threads than processors, torch's wait for each other.
test: setup
	$(RUN) $(HERE) OMP_NUM_THREADS=1 pytest -n 2 --dist loadfile

lint: setup
	$(RUN) ruff check
	$(RUN) ruff format --check

types: setup
	$(RUN) $(HERE) pyright

# Compiled once, at the start: where PYTHONDONTWRITEBYTECODE is set, each command would compile torch anew, for ten seconds.
setup: $(UV)
	@if [ ! -d .venv ]; then compile=--compile-bytecode; fi; \
	$(UV) sync --frozen --all-extras --quiet $$compile

.uv/bin/uv:
	python3 bootstrap_uv.py .uv
