# One gate, `make check`; the same command runs in CI. `make help` lists the rest.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SERVER := $(VENV)/.server-installed

# Tests the alert rules of deploy/.
PROMTOOL := $(BIN)/promtool

# Where `make up` keeps what outlives it.
DATA_DIR ?= $(or $(HOLDFAST_DATA_DIR),$(CURDIR)/.holdfast)

# What `make sim` plays.
SEEDS ?= 20000
START ?= 1000

# What `make chaos` and `make fuzz` play; SEED is drawn if it is not given.
SECONDS ?= 600
EVERY ?= 8
MIX ?= all
LEADER_TTL_MS ?= 1500
SEED ?=

# A trace of requests, which `make bench-peers` replays.
TRACE ?=

# How often `make stress` runs its tests.
TIMES ?= 10

# How many processes test at once. Most tests wait more than they compute: five left a seventh of two cores idle.
WORKERS ?= 6

# Debian packages that tests need, each installed only if it is missing.
APT_PACKAGES := etcd-server zookeeper openssl iproute2 chromium chromium-driver

# What `make bench-peers` compares with.
PEERS := .venv-peers
PEER_PACKAGES := mooncake-transfer-engine-non-cuda==0.3.13.post1 redis hiredis pymemcache pytest
PEER_APT_PACKAGES := etcd-server iproute2 redis-server memcached libibverbs1 librdmacm1 libnuma1

# Generates messages_pb2: the oldest that this code may meet, because generated code refuses an older protobuf than its own.
PROTOS := .venv-protos
PROTOC_PACKAGES := grpcio-tools==1.67.1 'setuptools<81'

# What `make lock`, `make dist` and `make sbom` work with, apart from what is developed and tested with.
RELEASE := .venv-release
RELEASE_PACKAGES := pip-tools cyclonedx-bom build twine

.DEFAULT_GOAL := help
.PHONY: help up check check-format check-lint check-types check-imports check-tests docs sim chaos stress fuzz lock dist sbom protos fmt bench pictures bench-peers bench-engines soak ecosystem clean apt

help: ## say what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "holdfast needs Python 3.11 or later; choose one with: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Enough to run a cluster: a third of the packages that development needs. What is never imported is never compiled.
$(SERVER): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[server]'
	@touch $@

$(STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[all,dev]'
	@touch $(SERVER) $@

up: $(SERVER) ## start two masters and a node here, until Ctrl-C (DATA_DIR=.holdfast)
	@exec $(BIN)/holdfast up --data-dir '$(DATA_DIR)'

apt:
	@for package in $(APT_PACKAGES); do \
		dpkg -s "$$package" >/dev/null 2>&1 || missing="$$missing $$package"; \
	done; \
	if [ -n "$$missing" ]; then \
		[ "$$(id -u)" = 0 ] || { echo "the tests need:$$missing; install with: sudo apt-get install$$missing" >&2; exit 1; }; \
		apt-get update --quiet && \
		DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends $$missing; \
	fi

# One program of a package whose service nobody wants here: taken out, not installed.
$(PROMTOOL): | $(BIN)/python
	@if found=$$(command -v promtool); then ln -sf "$$found" $@; else \
		cd $(VENV) && rm -f prometheus_*.deb && \
		{ apt-get download --quiet prometheus || { apt-get update --quiet && apt-get download --quiet prometheus; }; } && \
		dpkg-deb --fsys-tarfile prometheus_*.deb | tar --extract --to-stdout ./usr/bin/promtool > bin/promtool.part && \
		chmod +x bin/promtool.part && mv bin/promtool.part bin/promtool && rm prometheus_*.deb; \
	fi

check: apt $(STAMP) $(PROMTOOL) ## format, lint, types, imports, documentation, tests
	@$(MAKE) --no-print-directory --jobs 3 --output-sync=target check-imports check-format check-lint
	@$(MAKE) --no-print-directory --jobs 2 check-types check-tests

# Types are checked beside the first tests, which leave a part of the cores idle; a failure of either is one of the gate.
# Tests start hundreds of processes, each of which would compile the sources anew where the shell sets this.
check-tests: export PYTHONDONTWRITEBYTECODE =
check-tests: $(STAMP)
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

check-format: $(STAMP)
	$(BIN)/ruff format --check .

check-lint: $(STAMP)
	$(BIN)/ruff check .

check-types: $(STAMP)
	$(BIN)/mypy --strict src

check-imports: $(STAMP)
	$(BIN)/lint-imports --no-cache

docs: $(STAMP) ## build the documentation into build/site; a broken link is an error
	$(BIN)/python -m mkdocs build --strict

sim: $(STAMP) ## play SEEDS=20000 simulated worlds on all cores, then hunt planted bugs
	time -p $(BIN)/python -m holdfast.simulation run --seeds $(SEEDS) --start $(START) --go-on
	# A dump of what runs, after 100 s, may crash the interpreter that runs it.
	$(BIN)/python -m pytest -m thorough -o faulthandler_timeout=0 --numprocesses auto tests/simulation

chaos: apt $(STAMP) ## real processes under faults for SECONDS=600 (SEED=, EVERY=8, MIX=all|soak, LEADER_TTL_MS=1500)
	@$(BIN)/python -m chaos --seconds $(SECONDS) --every $(EVERY) --mix $(MIX) --leader-ttl-ms $(LEADER_TTL_MS) \
		$(if $(SEED),--seed $(SEED)) || [ $$? = 77 ]

# Whatever fails only on a busy machine fails here: two loops per core compete with the tests.
stress: apt $(STAMP) ## the end-to-end, failover and chaos tests TIMES=10 times on a busy machine
	@busy=; failed=0; trap 'kill $$busy' EXIT; trap 'exit 130' INT TERM; \
	for each in $$(seq $$((2 * $$(nproc)))); do sh -c 'while :; do :; done' & busy="$$busy $$!"; done; \
	for time in $$(seq $(TIMES)); do \
		echo "run $$time of $(TIMES)"; \
		$(BIN)/python -m pytest --quiet --numprocesses $(WORKERS) --dist loadfile tests/e2e tests/failover tests/chaos \
			|| failed=$$((failed + 1)); \
	done; \
	echo "$$failed of $(TIMES) runs failed"; [ $$failed = 0 ]

# atheris has no wheel for every Python: without it, decoders are fuzzed by mutation alone.
fuzz: $(STAMP) ## altered bytes at everything that reads bytes of others, for SECONDS=600 (SEED=)
	@$(BIN)/python -c 'import atheris' 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --only-binary :all: 'atheris>=3.0' || echo "without atheris"
	PYTHONPATH=src $(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

$(RELEASE)/.installed:
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet $(RELEASE_PACKAGES)
	@touch $@

# `make check` installs by the bounds of pyproject.toml, so that a release of somebody else's that breaks us is noticed.
lock: $(RELEASE)/.installed ## write requirements/dev.lock: the versions of everything, for an environment like the last one
	CUSTOM_COMPILE_COMMAND='make lock' $(RELEASE)/bin/pip-compile --quiet --upgrade --allow-unsafe --strip-extras --no-emit-index-url --no-emit-trusted-host \
		--no-emit-find-links --extra all --extra dev --output-file requirements/dev.lock pyproject.toml
	sed -i '/^holdfast @/,/^[a-z]/{/^holdfast @/d;/^ /d}' requirements/dev.lock
	sed -i '/^# The following packages are considered/d' requirements/dev.lock

dist: $(RELEASE)/.installed ## write dist/: the wheel and the source distribution
	$(RELEASE)/bin/python -m build --outdir dist .
	$(RELEASE)/bin/python -m twine check --strict dist/holdfast-*

# Without pip and setuptools, which an installation does not need: an environment brings old ones, with known vulnerabilities.
sbom: $(RELEASE)/.installed ## write dist/holdfast.cdx.json: what an installation with all extras consists of (CycloneDX)
	rm -rf .venv-sbom && $(PYTHON) -m venv --without-pip .venv-sbom && mkdir -p dist
	$(RELEASE)/bin/python -m pip --python .venv-sbom/bin/python install --quiet --constraint requirements/dev.lock '.[all]'
	$(RELEASE)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file dist/holdfast.cdx.json .venv-sbom/bin/python

protos: ## generate coordination/etcd/messages_pb2 from messages.proto
	$(PYTHON) -m venv $(PROTOS)
	$(PROTOS)/bin/python -m pip install --quiet $(PROTOC_PACKAGES)
	$(PROTOS)/bin/python -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src holdfast/coordination/etcd/messages.proto

fmt: $(STAMP) ## format, and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## measure this machine against the figures of docs/performance.md
	$(BIN)/python -m benchmarks

pictures: apt $(STAMP) ## docs/pictures/dashboard-*.png, of a cluster under load
	PYTHONPATH=src $(BIN)/python -m tests.dashboard.browser.pictures

# The others have an environment of their own: what they need is not for holdfast to have.
$(PEERS)/.installed: pyproject.toml
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --editable '.[all]' $(PEER_PACKAGES)
	@touch $@

# The pictures are drawn from what was measured last. A trace of requests is replayed only if its path is given.
bench-peers: ## holdfast beside Mooncake Store, Redis and memcached, in one run, and docs/pictures/peers-*.svg (TRACE=path)
	@$(MAKE) --no-print-directory apt APT_PACKAGES='$(PEER_APT_PACKAGES)'
	@$(MAKE) --no-print-directory $(PEERS)/.installed
	mkdir -p build
	$(PEERS)/bin/python -m benchmarks.peers --json build/peers.json $(if $(TRACE),--trace '$(TRACE)')
	$(PEERS)/bin/python -m benchmarks.peer_pictures build/peers.json docs/pictures

bench-engines: apt $(STAMP) ## a cached prompt inside a real vLLM engine: holdfast, Mooncake, computed
	@$(MAKE) --no-print-directory apt APT_PACKAGES='$(PEER_APT_PACKAGES)'
	$(BIN)/python -m benchmarks.engines

# Virtual environments of the engines take gigabytes and minutes; they are kept in .ecosystem.
ecosystem: apt $(STAMP) ## the real vLLM, SGLang, LMCache and Mooncake packages on holdfast (ONLY=text)
	@$(MAKE) --no-print-directory apt APT_PACKAGES='$(PEER_APT_PACKAGES)'
	$(BIN)/python -m ecosystem $(if $(ONLY),--only '$(ONLY)')

soak: $(STAMP) ## minutes of a cluster's life: the log is trimmed, nothing grows
	$(BIN)/python -m benchmarks.soak

clean: ## remove what was built
	rm -rf $(VENV) $(PEERS) $(PROTOS) $(RELEASE) .venv-sbom .ecosystem build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .grimp_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
