PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Compose 2 if the docker program has it, else compose 1.
COMPOSE ?= $(if $(shell docker compose version 2>/dev/null),docker compose,docker-compose)
# Tests start hundreds of processes: each would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test compiled unit libraries check lint contracts types-linux types-darwin types-win32 figures acceptance gallery changelog bench fuzz search mutants docs docs-serve docker kubernetes locked lock audit sbom dist installed clean

# What installs, and what works on dependencies; uv is a wheel, and tools/uv.py has it look where pip is told to look.
TOOLS := build/tools
UV := $(TOOLS)/bin/python tools/uv.py
$(TOOLS)/bin/uv:
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.9

$(BIN)/python: | $(TOOLS)/bin/uv
	$(UV) venv --quiet --allow-existing --python $(PYTHON) $(VENV)

# Every target sets up what it needs: a virtual environment with the exact versions of constraints.txt. Nothing is compiled.
$(VENV)/.ready: pyproject.toml constraints.txt | $(BIN)/python
	$(UV) pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[dev]'
	touch $@

# The same, where every file is one whose hash is in requirements.lock; decisions/0035 says why that is not the default.
locked: $(BIN)/python
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock
	$(UV) pip install --quiet --python $(BIN)/python --no-build-isolation --no-deps -e .
	touch $(VENV)/.ready

demo: $(VENV)/.ready
	$(BIN)/starling demo

check: lint contracts figures

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

TYPES := types-linux types-darwin types-win32
contracts: $(TYPES) $(VENV)/.ready
	$(BIN)/lint-imports

$(TYPES): types-%: $(VENV)/.ready
	$(BIN)/mypy --platform $* --cache-dir .mypy_cache/$*

# How the code is built, beside limits that only shrink.
figures: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(BIN)/python tools/figures.py

test: lint
	$(MAKE) -j 2 contracts compiled
	$(MAKE) unit

# Every test module and what it imports, compiled once; each of the three processes of `unit` would do it again. What is wrong, `unit` says.
compiled: $(VENV)/.ready
	-@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --collect-only > /dev/null

# Three at a time, each a file, for two cores: one of them runs processes and mostly waits; tests/conftest.py says more.
unit: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder

# Tests with models and training loops of other libraries, which `unit` skips where these are not installed.
libraries: $(VENV)/.ready
	$(UV) pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[transformers,accelerate,peft,trl,lightning,onnx,parquet,images]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/node/tasks tests/node/engine/test_formats.py tests/api/test_own_model.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m 'acceptance or not acceptance' tests/integrations tests/real/test_notebook_member.py

acceptance: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m acceptance --timeout 3600
	STARLING_EXAMPLES=5 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/gossip tests/robust tests/node --timeout 3600

# The examples gallery, each as its README says; minutes, nightly. Those whose data or libraries are not here are skipped by name.
gallery: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(BIN)/python tools/gallery.py

bench: $(VENV)/.ready
	$(BIN)/python -m benchmarks.run; code=$$?; $(BIN)/python -m benchmarks.table && exit $$code

# All decoders, two at a time. What is found on the way is kept in build/fuzz, and the next run goes on from there.
STARLING_FUZZ_SECONDS ?= 600
fuzz: $(VENV)/.ready
	STARLING_FUZZ_SECONDS=$(STARLING_FUZZ_SECONDS) STARLING_FUZZ_CORPUS=build/fuzz $(BIN)/python -m pytest -q -s -m "fuzz or acceptance" tests/fuzz

# What one hostile member may do to whole nodes, in virtual time: schedules that hypothesis draws, half a second to a second of processor time each.
STARLING_SEARCH_SCHEDULES ?= 10000
search: $(VENV)/.ready
	STARLING_SEARCH_SCHEDULES=$(STARLING_SEARCH_SCHEDULES) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -s -m search tests/swarm

# Single lines of the cores, broken one at a time: tests must fail for each. Minutes; not part of `make test`.
mutants: $(VENV)/.ready
	$(BIN)/python tools/mutants.py

# The documentation site, in build/site. A warning or a broken link is an error; with --quiet mkdocs would count none.
export NO_MKDOCS_2_WARNING := 1
docs: $(VENV)/.ready
	$(BIN)/python -m mkdocs build

# On http://127.0.0.1:8000, built anew when a page changes.
docs-serve: $(VENV)/.ready
	$(BIN)/python -m mkdocs serve --dev-addr 127.0.0.1:8000

docker:
	$(COMPOSE) -p starling -f docker/compose.yaml up --build --scale volunteer=5

$(TOOLS)/.ready: | $(TOOLS)/bin/uv
	$(UV) pip install --quiet --python $(TOOLS)/bin/python pip-audit==2.10.1 kubernetes-validate==1.37.0
	touch $@

# Both folders as kubectl renders them, against the schemas of Kubernetes.
kubernetes: $(TOOLS)/.ready
	for folder in kubernetes kubernetes-gpu; do kubectl kustomize deploy/$$folder > build/$$folder.yaml \
		&& $(TOOLS)/bin/kubernetes-validate --strict build/$$folder.yaml || exit 1; done

# Extras that are pinned; those of other libraries' models are not: 50 s of installation, and packages that nothing else needs.
LOCKED := cluster plot gpu benchmark privacy tensorboard dev

# After a change of constraints.txt or of the dependencies in pyproject.toml. The hashes are of all files of a version, whatever the machine.
lock: $(TOOLS)/bin/uv
	UV_CUSTOM_COMPILE_COMMAND="make lock" $(UV) pip compile --quiet --upgrade --universal --python-version 3.11 \
		$(LOCKED:%=--extra %) --generate-hashes --no-annotate -c constraints.txt pyproject.toml -o requirements.lock

# Known vulnerabilities of what is pinned, in full in build/audit.json. --strict: a package that the database does not know is a failure.
audit: $(TOOLS)/.ready
	mkdir -p build && rm -f build/audit.json
	$(TOOLS)/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off -r requirements.lock -f json -o build/audit.json \
		2>build/audit.log; code=$$?; tail -n 1 build/audit.log >&2; echo >&2; test -s build/audit.json \
		|| echo "audit: no database of vulnerabilities answered for all packages; nothing is known" >&2; exit $$code

# What CHANGELOG.md would say of the fragments; with RELEASE='X.Y.Z YYYY-MM-DD' it does, and they are deleted.
changelog: $(VENV)/.ready
	$(BIN)/python tools/changelog.py $(RELEASE)

# CycloneDX.
sbom: $(VENV)/.ready
	mkdir -p dist
	$(BIN)/python -m tools.sbom > dist/starling-swarm.cdx.json

# The sdist, the wheel and the bill of materials. The description on an index links to REPOSITORY=https://HOST/OWNER/NAME if that is given.
dist: sbom
	rm -rf build/dist && mkdir -p build/dist && cp -a CITATION.cff LICENSE pyproject.toml src gossip robust node tui examples build/dist
	mkdir build/dist/benchmarks && cp -a benchmarks/kernels build/dist/benchmarks
	$(if $(REPOSITORY),$(BIN)/python tools/pypi_readme.py $(REPOSITORY),cat README.md) > build/dist/README.md
	$(if $(REPOSITORY),,@echo "dist: links of the description stay relative; for an index: make dist REPOSITORY=https://HOST/OWNER/NAME" >&2)
	cd build/dist && $(abspath $(BIN))/python -c "from setuptools import build_meta as b; b.build_sdist('../../dist'); b.build_wheel('../../dist')"

# The wheel of `make dist` as its users have it: by pip in a new environment, with a line for libp2p, no compiler and an empty home.
INSTALLED := build/installed
installed:
	rm -rf $(INSTALLED) && $(PYTHON) -m venv $(INSTALLED) && mkdir $(INSTALLED)/home
	CC=false $(INSTALLED)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	$(INSTALLED)/bin/python -m $$($(INSTALLED)/bin/python -c "from starling.node.versions import INSTALL_LIBP2P; print(INSTALL_LIBP2P)")
	cd $(INSTALLED)/home && HOME=$$PWD ../bin/starling demo --nodes 2 --rounds 3 --set pace.local_steps=2 --no-tui

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
