# make demo and make test do everything on a fresh Debian or Ubuntu machine with python3 >= 3.11, make and gcc.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Some machines' images forbid bytecode, and then each of dozens of processes compiles its modules and rewrites the
# tests' assertions again: 9 s of processor time instead of 3 before the first contract is tried.
export PYTHONDONTWRITEBYTECODE :=

# Its plugin is loaded by every process of pytest unless it is refused, and the contract of the REST API alone needs it.
# Everything that tests draw at random follows from one seed, which `make test` prints first.
ifndef SEED
SEED := $(or $(FAIRGPU_SEED),$(shell od -An -N3 -tu4 /dev/urandom | tr -d ' '))
endif
export FAIRGPU_SEED := $(SEED)

PYTEST := $(BIN)/pytest --durations=10 --durations-min=1 --hypothesis-seed=$(SEED)
WITHOUT_SCHEMATHESIS := -p no:schemathesis

.PHONY: setup demo test quick seed ladder lint types contracts unit accelerated contract described redis-7 page cluster node node-v2 node-parts vcuda bench bench-month browser promtool s3-server lock clean

setup: $(VENV)/.installed

$(VENV)/.installed: requirements.lock setup.cfg tools/setup.sh
	sh tools/setup.sh $(PYTHON) $(VENV)
	@touch $@

demo: setup
	$(if $(CLUSTER),sh tools/demo_cluster.sh $(VENV),$(BIN)/fairgpu demo)
	$(if $(CLUSTER),,@echo; echo "building the shim and the simulated GPU ..."; $(MAKE) -s -C vcuda demo PYTHON=$(abspath $(BIN)/python))

test: seed lint types contracts browser promtool
	$(MAKE) ladder $(SIDE_BY_SIDE)
	@cat build/not-run/* 2>/dev/null || true

# The inner loop after a change: a minute on two cores.
quick: lint types contracts unit

seed:
	@echo "make test SEED=$(SEED) draws the same random examples again"

# Rungs that mostly wait, for clocks and for each other's servers, begin first and longest first, three at a time; those
# that only compute fill what they leave idle of two cores. In continuous integration, where the cluster also has to wait
# for its binaries, one comes after the other. What a rung prints stays together.
SIDE_BY_SIDE := $(if $(CI),--jobs=1,--jobs=3 --output-sync=target)
ladder: cluster vcuda contract page redis-7 unit described accelerated node

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/readability.py

types: setup
	$(BIN)/mypy

contracts: setup
	$(BIN)/lint-imports

unit: setup
	nice $(PYTEST) $(WITHOUT_SCHEMATHESIS) --numprocesses auto tests/unit

# The tests of admission and of the scheduler once more, on what the images run. Where nothing can be compiled the tree is empty, and the
# tests are of the same modules as before.
ACCELERATED := build/accelerated
# The tree holds the packages whole, so that a service runs from it.
COMPILED := setup.py $(wildcard fairgpu/*.py fairgpu/*/*.py webhook/*.py webhook/*/*.py scheduler/*.py scheduler/*/*.py)

# Compiled code reads a dict past the methods of its subclass, by which test_excerpt.py records reads.
accelerated: $(ACCELERATED)/.built
	PYTHONPATH=$(ACCELERATED) nice $(PYTEST) $(WITHOUT_SCHEMATHESIS) --numprocesses auto \
	  --override-ini "pythonpath=$(ACCELERATED) ." --ignore tests/unit/webhook/test_excerpt.py \
	  tests/unit/fairgpu tests/unit/webhook tests/unit/scheduler

$(ACCELERATED)/.built: $(COMPILED) | setup
	sh tools/accelerate.sh $(BIN)/python $(ACCELERATED)
	@touch $@

# What a worker keeps to, and in which order, tests/contract/conftest.py says. Each costs three seconds of processor time,
# for it imports everything: where other rungs run beside, a few are enough.
IN_ORDER := --dist loadfile --no-loadscope-reorder
DESCRIBED := tests/contract/timekeeper_rest/test_openapi.py
contract: setup promtool s3-server
	$(PYTEST) $(WITHOUT_SCHEMATHESIS) --numprocesses $(if $(CI),6,3) $(IN_ORDER) tests/contract --ignore $(DESCRIBED)

described: setup
	$(PYTEST) $(DESCRIBED)

# Redis 7 runs scripts, replicates and keeps its files in other ways than the 6.2 of the wheel. Continuous integration
# tries all of the books on it, everybody else what lies closest to those three.
NEAR_REDIS := settlement published replicas store_access store_gone_back store_shapes
ON_REDIS_7 := $(if $(CI),tests/contract/timekeeper,$(NEAR_REDIS:%=tests/contract/timekeeper/test_%.py))
redis-7: setup s3-server
	CI= FAIRGPU_REDIS_SERVER=$$($(BIN)/python -m tests.support.servers.redis_binaries) \
	  $(PYTEST) $(WITHOUT_SCHEMATHESIS) $(if $(CI),--numprocesses 4 $(IN_ORDER)) $(ON_REDIS_7)

page: setup browser
	$(PYTEST) $(WITHOUT_SCHEMATHESIS) --numprocesses 2 --dist loadfile tests/page

browser: setup
	sh tools/browser.sh $(VENV)

promtool: setup
	sh tools/promtool.sh $(VENV)

s3-server: setup
	sh tools/s3_server.sh $(VENV)

# One worker for each control plane (tests/cluster/conftest.py).
cluster: setup
	$(BIN)/python -m tests.cluster.control_plane.build
	$(PYTEST) $(WITHOUT_SCHEMATHESIS) --numprocesses 3 tests/cluster

# A real kubelet and containerd, with the node agent on the simulated GPU. It takes what two other rungs build.
ifneq ($(filter ladder,$(MAKECMDGOALS)),)
node-parts: | cluster vcuda
endif
node-parts: setup
	sh tools/runc.sh $(VENV)
	$(BIN)/python -m tests.cluster.control_plane.build
	$(BIN)/python -m tests.node.binaries
	$(MAKE) --silent -C vcuda all simgpu build/tests/actor PYTHON=$(abspath $(BIN)/python)

node: node-parts
	sh tools/node.sh $(VENV)

# The same on cgroup v2, whatever this machine has: what a version of cgroups can matter to, in a kernel of its own. It is no
# part of the ladder: beside other work that kernel is so slow that requests to its API server end at their time limits.
node-v2: node-parts
	sh tools/node_v2.sh $(VENV)

vcuda: setup
	$(MAKE) --silent --jobs=1 -C vcuda test PYTHON=$(abspath $(BIN)/python)

bench: setup browser $(ACCELERATED)/.built
	sh tools/load_generator.sh
	$(BIN)/python -m tests.bench

# A simulated day of 100,000 pods took 126 s of processor time, Redis's 60 s beside, in the month of docs/sizing.md.
DAYS := 30
bench-month: setup
	$(BIN)/python -m tests.bench.month --days $(DAYS)

# The APIs of kubelet and runtime, as far as the node agent speaks them; tests/contract/nodeagent holds the modules to the files.
.PHONY: protos
protos: setup
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. nodeagent/*/*.proto

# Pins every dependency of every extra, with hashes, for all platforms; then the same for what each image takes.
COMPILE := $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-emit-index-url --no-annotate --quiet
IMAGE := deploy/images/service

EXTRAS := webhook timekeeper scheduler nodeagent demo test

lock:
	$(COMPILE) setup.cfg $(EXTRAS:%=--extra %) --output-file requirements.lock
	$(COMPILE) --constraint requirements.lock tools/accelerated.in --output-file tools/accelerated.lock
	$(COMPILE) tools/s3-server.in --output-file tools/s3-server.lock
	$(COMPILE) --constraint requirements.lock setup.cfg --extra webhook --output-file $(IMAGE)/webhook.lock
	$(COMPILE) --constraint requirements.lock setup.cfg --extra timekeeper --output-file $(IMAGE)/timekeeper.lock
	$(COMPILE) --constraint requirements.lock setup.cfg --extra scheduler --output-file $(IMAGE)/scheduler.lock
	$(COMPILE) --constraint requirements.lock setup.cfg --extra nodeagent --output-file deploy/images/nodeagent/nodeagent.lock
	$(COMPILE) --constraint requirements.lock $(IMAGE)/build.in --output-file $(IMAGE)/build.lock

clean:
	rm -rf $(VENV) build vcuda/build
