# make demo, make test: each sets everything up by itself, inside this folder and uv's cache.

UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
RUN = $(UV) run --frozen --all-extras

.PHONY: demo test lint types check setup

demo: setup
	$(RUN) proxemic demo

test: setup
	$(RUN) pytest

lint: setup
	$(RUN) ruff check
	$(RUN) ruff format --check

types: setup
	$(RUN) pyright

check: lint types test

setup: $(UV)
	@$(UV) sync --frozen --all-extras --quiet

# No uv on this machine: a copy of our own, in a virtual environment that only holds uv.
.uv/bin/uv:
	python3 -m venv .uv
	.uv/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.9,<1'
