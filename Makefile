# `make demo` shows it, `make check` is for every change, `make test` for what is to be merged.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

SECURED := $(addprefix tests/cluster/,test_java_clients.py test_kafkajs_client.py test_platformatic_client.py test_go_clients.py)

.DEFAULT_GOAL := help
.PHONY: help install check version foreign-clients secured-clients foreign-systems foreign-tools spark-connector spark-programs rolling-upgrade quotas exactly-once histories test lint sizes demo proto kernel lock audit image clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(BIN)/.installed: pyproject.toml setup.py spark/decoding/kernel.c $(wildcard proto/*.proto)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tidegate needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": set PYTHON=/path/to/python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	$(BIN)/python -m tidegate.spark.java --ensure
	touch $@

install: $(BIN)/.installed ## make .venv and install everything into it

demo: install ## run the main job on three nodes, with two kills, and check every record
	$(BIN)/tidegate demo

foreign-clients: install ## fetch and build the Kafka clients of other languages that the tests use (Maven, npm, Go)
	$(BIN)/python tests/foreign_clients.py

secured-clients: foreign-clients ## all that these clients are tried for, and Kafka's tools, as users: SCRAM-SHA-512, certificates, bearer tokens (minutes)
	$(BIN)/python -m pytest $(SECURED) --secured SCRAM-SHA-512
	$(BIN)/python -m pytest $(SECURED) --secured SSL
	@# kafka-go has no OAUTHBEARER
	$(BIN)/python -m pytest $(SECURED) --secured OAUTHBEARER -k "not TestKafkaGo"
	$(BIN)/python -m pytest tests/secured_tools

foreign-systems: install ## run Kafka Streams, Flink and Kafka's own copier on three nodes that are killed (Maven; minutes)
	$(BIN)/python tests/foreign_clients.py systems
	$(BIN)/python -m pytest tests/systems

foreign-tools: install ## run Kafka's own tools against Tidegate and against a Kafka, and compare (Maven, Java)
	$(BIN)/python -m tests.kafka_tools --write
	$(BIN)/python -m tests.kafka_tools.secured --write
	$(BIN)/python -m bench.permissions check tests/security/data/kafka-4.1.1-permissions.json

spark-connector: install ## run each option through Spark's own Kafka connector, too, and compare (Maven; minutes)
	$(BIN)/python -m tests.spark_connector --write
	$(BIN)/python -m tests.spark_connector.writes --write

rolling-upgrade: install ## roll a cluster under load from an older version (out of the git history) to this one and back (minutes)
	$(BIN)/python -m pytest tests/upgrades

quotas: install ## hold a producer and a reader to their quotas for more than a minute each, beside another client
	$(BIN)/python -m pytest tests/quotas -s

spark-programs: install ## run the programs of docs/spark.md as they stand, each with a Spark of its own, Spark's SQL, and executors of their own (Maven; minutes)
	$(BIN)/python -m pytest tests/spark_programs

exactly-once: install ## kill and lose at each step of Spark's writes, 200 times, and through Spark's own connector (Maven; half an hour or more)
	$(BIN)/python -m tidegate.tests.exactly_once

HISTORIES := storage:2000 quorum:1000 replication:400 transactions:400 cuts:1000
histories: install ## many more seeds of each simulator than `make test` has (half an hour or more); FIRST=N begins at another seed
	for each in $(HISTORIES); do $(BIN)/tidegate chaos sim $${each%:*} --seeds $${each#*:} --first $(FIRST) || exit; done
FIRST ?= 0

check: install ## ruff, mypy, and the tests without clusters, Spark and long histories: a minute or two
	$(BIN)/ruff check .
	mkdir -p .link && ln -sfn .. .link/tidegate
	@# mypy has one thread: it runs beside the tests, and reports behind them
	$(BIN)/mypy > .link/mypy.txt & types=$$!; \
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "not cluster and not spark and not long" \
		--hypothesis-profile=check --ignore=tests/cluster --ignore=tests/spark; tests=$$?; \
	wait $$types; types=$$?; cat .link/mypy.txt; test $$tests = 0 -a $$types = 0

# As many as the smallest machine has cores: there three were no faster.
WORKERS ?= 2

test: install ## run all tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

lint: install ## ruff and strict mypy
	$(BIN)/ruff check .
	mkdir -p .link && ln -sfn .. .link/tidegate
	$(BIN)/mypy

lock: install ## choose the newest versions for the image, and write its lock files with their hashes
	$(BIN)/python -m pip install --quiet 'uv>=0.9'
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python deploy/image/lock.py

audit: install ## ask for known vulnerabilities of what the image holds (needs an index with such data)
	$(BIN)/python -m pip install --quiet 'pip-audit>=2.10'
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python deploy/image/audit.py

PYTHON_IMAGE ?=
BUILD_IMAGE ?=
BUILDER ?= docker build
image: ## build both images of a release; PYTHON_IMAGE, BUILD_IMAGE=NAME@sha256:DIGEST say on which base, and where with a compiler
	@for named in 'PYTHON_IMAGE=$(PYTHON_IMAGE)' 'BUILD_IMAGE=$(BUILD_IMAGE)'; do case "$$named" in \
		*@sha256:????????????????????????????????????????????????????????????????) ;; \
		*) echo "$$named has no digest: a release names its images as NAME@sha256:DIGEST" >&2; exit 2;; esac; done
	for target in node spark; do $(BUILDER) -f deploy/image/Dockerfile --target $$target \
		--build-arg PYTHON_IMAGE='$(PYTHON_IMAGE)' --build-arg BUILD_IMAGE='$(BUILD_IMAGE)' -t tidegate/$$target:$$($(MAKE) -s version) . || exit; done

version: ## print the version of the wheel and the image, which stands in __init__.py
	@sed -n 's/^__version__ = "\(.*\)"$$/\1/p' __init__.py

sizes: install ## report the largest files, classes and functions
	$(BIN)/python -m tests.sizes

kernel: ## build the decode kernel of the Spark source again after a change (a C compiler)
	$(BIN)/python setup.py --quiet build_ext --inplace

proto: ## generate the protobuf modules again after a change in proto/
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python setup.py --quiet build_py

clean: ## remove everything that was made, but no data folder
	rm -rf $(VENV) .link build *.egg-info proto/*_pb2*
