# make quick, demo, test, test-fast, test-docs, coverage, mutants, docs, dist, lint, types, lowest, gpu-packages: each sets everything
# up by itself and writes nothing outside this folder but uv's cache.

UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
RUN = $(UV) run --frozen --all-extras --
# Compiled once, at the start: where PYTHONDONTWRITEBYTECODE is set, each command would compile torch anew, for ten seconds.
SYNC = $(UV) sync --frozen --quiet $(shell [ -d .venv ] || echo --compile-bytecode)
# What libraries keep for themselves (fonts, rendered glyphs, pyright's program) stays in this folder.
CACHES = "XDG_CACHE_HOME=$(CURDIR)/.cache" "MPLCONFIGDIR=$(CURDIR)/.cache/matplotlib"
HERE = env $(CACHES)
# Workers of one thread each: with more threads than processors, torch's wait for each other. Three, since they wait for
# processes, servers and browsers a third of their time. What is compiled is kept, so that the hundreds of processes that
# the tests start need not compile it anew.
TESTING = env -u PYTHONDONTWRITEBYTECODE $(CACHES) OMP_NUM_THREADS=1
PYTEST = pytest --workers 3
# The tests of what surrounds the package: documentation and its site, experiments, benchmarks, distributions.
OF_DOCS = $(addprefix tests/test_,$(addsuffix .py,benchmarks claims distributions docs experiments extending licences migrating \
	readme site tutorials))

.PHONY: quick demo test test-fast test-docs coverage mutants docs dist lint types lowest gpu-packages setup

# What the demo, the pages to start with and a search need, without the other extras and the tests.
quick: $(UV)
	@$(SYNC) --no-dev --inexact --extra train --extra pretrained --extra retrieval

demo: quick
	@$(UV) run --no-sync -- $(HERE) proxemic demo
	@echo "In this folder, proxemic is .venv/bin/proxemic."

test: setup
	$(RUN) $(TESTING) $(PYTEST) $(addprefix --ignore=,$(OF_DOCS))

# While working: without the tests that start processes and browsers.
test-fast: setup
	$(RUN) $(TESTING) $(PYTEST) -m "not slow" $(addprefix --ignore=,$(OF_DOCS))

test-docs: setup
	$(RUN) $(TESTING) $(PYTEST) $(OF_DOCS)

# Lines and branches of src that the tests run, and which they do not; pyproject.toml says how many are demanded.
coverage: setup
	@mkdir -p .cache/coverage
	$(RUN) $(TESTING) COVERAGE_FILE=$(CURDIR)/.cache/coverage/data $(PYTEST) -m "not full_disk" --cov --cov-report=term

# Which of sixty random changes of the package no test notices; by what the tests ran in the last `make coverage`. Half an hour.
mutants: .cache/coverage/data
	$(RUN) $(TESTING) python benchmarks/mutants.py

.cache/coverage/data:
	$(MAKE) coverage

# The documentation as a site, without a network; a warning is an error.
docs: setup
	@$(RUN) $(TESTING) NO_MKDOCS_2_WARNING=1 mkdocs build --strict
	@echo "The documentation is in site/: open site/index.html in a browser."

# dist/: the source distribution and the wheel, which for the same commit have the same bytes. Both are then looked
# into, and the wheel installed bare and with each extra, by the oldest and the newest Python that is there.
dist: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
dist: setup
	@rm -rf dist
	$(UV) build --quiet
	$(RUN) $(TESTING) PROXEMIC_DIST=$(CURDIR)/dist pytest tests/test_distributions.py

lint: setup
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(RUN) python tests/wording.py

types: setup
	$(RUN) $(HERE) pyright

# The tests with the lowest versions that pyproject.toml allows. What libraries of that age warn about is not for us to mend:
# in this process, and in those that tests start and whose standard error they read.
lowest: $(UV)
	$(UV) venv --quiet --clear --python 3.11 .cache/lowest
	$(UV) pip install --quiet --python .cache/lowest --resolution lowest-direct --all-extras --group dev \
		-r pyproject.toml --editable .
	$(TESTING) PYTHONWARNINGS='ignore:TypedStorage is deprecated:UserWarning' \
		.cache/lowest/bin/$(PYTEST) --override-ini=filterwarnings=default

# .cache/gpu: what benchmarks/gpu.py and the tests of losses and metrics need on a GPU machine without a network that has
# Python 3.12, torch and the usual packages; with proxemic's own name and version.
gpu-packages: $(UV)
	@rm -rf .cache/gpu
	$(UV) pip install --quiet --no-deps --target .cache/gpu --python-version 3.12 \
		--python-platform x86_64-manylinux_2_28 beartype platformdirs \
		pytorch-metric-learning .
	@du -sh .cache/gpu

setup: $(UV)
	@$(SYNC) --all-extras

.uv/bin/uv:
	python3 bootstrap_uv.py .uv
