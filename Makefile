# Every target installs what it needs if that is missing or older than the lock file.
.DEFAULT_GOAL := help
.PHONY: help run dev build check test token bench openapi dist sbom clean measure crash drain fuzz cluster faults

INSTALLED := node_modules/.package-lock.json
BUILT := dist/main.js
SOURCES := $(shell find src -name '*.ts')
# TEST=path names the test files to run; all of them by default, a group of files in each process.
TEST ?= $(wildcard test/groups/*.ts)
export SUB ?= alice
RESTARTS ?= 10
REQUESTS ?= 20000
SCRIPT := node --import tsx
# The compiler is a Go program. It is faster if it collects garbage less often.
TSC := GOGC=400 node_modules/.bin/tsc

help: ## show this list
	@awk -F ":.*## " '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '\nTo put the service under strain (Linux):\n'
	@awk -F ':.*##2 ' '/^[a-z]+:.*##2 / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(BUILT) ## serve on 127.0.0.1:8080 with a development key, and print curl lines to paste
	@exec node dist/main.js serve --dev

token: $(BUILT) ## print a token for the development key; SUB=name says whose
	@node dist/main.js token --sub "$$SUB"

# The tests are compiled once, to build/. Most files cost more to start than to run, so a group of them
# shares a process. More processes than cores: many tests wait. The timeout only ends hangs. Their
# databases are small: optimizing SQLite would cost V8 more than it saves.
test: check ## run all tests; TEST=file runs some, PLANTS_TEST_THOROUGH=1 their long forms
	@node --liftoff-only --test --test-concurrency=6 --test-timeout=900000 $(TEST:test/%.ts=build/%.js)

check: $(BUILT) ## check the types of everything, tests and scripts included
	@rm -rf build
	@$(TSC) --project test
	@$(TSC) --project scripts

dev: $(BUILT) ## serve as `make run` does, and restart after each change of a source file
	@$(TSC) --watch --preserveWatchOutput & trap "kill $$! 2>/dev/null" EXIT; node --watch-path=dist dist/main.js serve --dev

build: $(BUILT) ## compile src/ to dist/

# Variables on make's command line reach a script as environment: here DUR, RUNS, NODE_ARGS.
bench: $(BUILT) ## measure beside bare node:http; WORKLOADS='get20 post' runs some
	@$(SCRIPT) scripts/bench.ts $(WORKLOADS)

openapi: $(BUILT) ## write src/api/openapi.json from the table of operations
	@$(SCRIPT) scripts/openapi.ts > src/api/openapi.json

dist: $(BUILT) ## make the release in release/: the npm package, an archive for node alone, and the SBOM
	@$(SCRIPT) scripts/dist.ts

sbom: $(BUILT) ## print the bill of materials of a release (CycloneDX)
	@$(SCRIPT) scripts/dist.ts --sbom

clean: ## remove what was built and installed; data/ stays
	rm -rf build dist release node_modules

measure: $(BUILT) ##2 list the scenarios that measure one cost each; SCENARIO=name runs one
	@$(SCRIPT) scripts/measure.ts $(SCENARIO)

crash: $(BUILT) ##2 kill the service under load ROUNDS=n times and look for lost plants; SEED=n repeats
	@$(SCRIPT) scripts/crash.ts

drain: $(BUILT) ##2 restart two instances RESTARTS=n times under REQUESTS=n requests; none may fail
	@PLANTS_TEST_RESTARTS=$(RESTARTS) PLANTS_TEST_REQUESTS=$(REQUESTS) node --import tsx --test test/e2e/drain.test.ts

fuzz: $(BUILT) ##2 send hostile requests for SECONDS=n; SEED=n, or REPLAY=file (scripts/fuzz/README.md)
	@$(SCRIPT) scripts/fuzz.ts

cluster: $(BUILT) ##2 run three members of etcd and two instances, and print curl lines; Ctrl-C ends all
	@exec $(SCRIPT) scripts/cluster.ts

faults: $(BUILT) ##2 break a cluster of etcd under load FAULTS=n times; INSTANCES=n, SEED=n
	@$(SCRIPT) scripts/cluster-faults.ts

$(INSTALLED): package.json package-lock.json
	npm ci --ignore-scripts --include=dev --no-audit --no-fund
	@touch $@

$(BUILT): $(INSTALLED) tsconfig.json $(SOURCES)
	@rm -rf dist
	$(TSC)
