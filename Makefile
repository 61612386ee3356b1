# What a person types. Every target installs what it needs when that is missing or older than the lock file.
.DEFAULT_GOAL := help
.PHONY: help run dev build test check limits json exhaust measure bench crash cluster faults drain fuzz soak token dist sbom clean

INSTALLED := node_modules/.package-lock.json
BUILT := dist/main.js
SOURCES := $(shell find src -name '*.ts')
# TEST=path names the test files to run; all of them otherwise.
TEST ?= $(shell find test -name '*.test.ts' | sort)
SUB ?= alice
ROUNDS ?= 50
RESTARTS ?= 10
REQUESTS ?= 20000
FAULTS ?= 16
INSTANCES ?= 3

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(BUILT) ## serve on 127.0.0.1:8080 with a development key, and print curl lines to paste
	@exec node dist/main.js serve --dev

dev: $(BUILT) ## the same, compiled and started again whenever a source file changes
	@npx tsc --watch --preserveWatchOutput & trap "kill $$!" EXIT; node --watch-path=dist dist/main.js serve --dev

build: $(BUILT) ## compile src/ to dist/

# The tests are compiled once to build/: each file that is transformed when it starts costs a fifth of a second.
# The timeout is for a whole file on a loaded machine: it only ends what hangs.
test: check ## build, check types, run all tests; TEST=file runs some, PLANTS_TEST_THOROUGH=1 runs their long forms
	@node --test --test-concurrency=4 --test-timeout=900000 $(TEST:test/%.ts=build/%.js)

check: $(BUILT) ## check the types of everything, tests and scripts included
	@rm -rf build
	@npx tsc --project test
	@npx tsc --project scripts

# Variables on make's command line reach the script as environment: CHART, OUT, DUR, WARM, RUNS, NODE_ARGS.
bench: $(BUILT) ## measure beside bare node:http; WORKLOADS='get20 post' runs some, CHART=file.svg draws them
	@node --import tsx scripts/bench.ts $(WORKLOADS)

crash: $(BUILT) ## kill the service under load, ROUNDS=n times, and look for what is lost; SEED=n repeats a run's choices
	@node --import tsx scripts/crash.ts --rounds $(ROUNDS) $(addprefix --seed ,$(SEED))

drain: $(BUILT) ## restart two instances under load, RESTARTS=n times and over REQUESTS=n requests, and look for one that fails
	@PLANTS_TEST_RESTARTS=$(RESTARTS) PLANTS_TEST_REQUESTS=$(REQUESTS) node --import tsx --test test/e2e/drain.test.ts

cluster: $(BUILT) ## three members of etcd and two instances on this machine, and curl lines to paste; Ctrl-C ends all
	@exec node --import tsx scripts/cluster.ts

faults: $(BUILT) ## break a cluster of etcd under load, FAULTS=n times, and look for broken promises; INSTANCES=n, SEED=n
	@node --import tsx scripts/cluster-faults.ts --faults $(FAULTS) --instances $(INSTANCES) $(addprefix --seed ,$(SEED))

fuzz: $(BUILT) ## send hostile requests for SECONDS=n and hold each answer against a model; SEED=n, SEEDS=n one after another, or REPLAY=file of a finding
	@node --import tsx scripts/fuzz.ts $(addprefix --seconds ,$(SECONDS)) $(addprefix --seed ,$(SEED)) $(addprefix --seeds ,$(SEEDS)) $(addprefix --replay ,$(REPLAY))

soak: $(BUILT) ## mixed traffic for SECONDS=n, and whether memory stays flat; CHART=file.svg draws it
	@node --import tsx scripts/soak.ts $(addprefix --seconds ,$(SECONDS)) $(addprefix --seed ,$(SEED)) $(addprefix --chart ,$(CHART))

exhaust: $(BUILT) ## ask a large store with TOKENS=n tokens, and print what memory that takes
	@node --import tsx scripts/exhaust.ts

measure: $(BUILT) ## what hostile clients cost: SCENARIO=stalls, strangers or memory; MAIN=dist/main.js of another build
	@node --import tsx scripts/measure.ts $(SCENARIO)

json: $(BUILT) ## measure how long reading a body takes, by shape and length, hostile ones included; SHAPES='a,b' runs some
	@node --import tsx scripts/json.ts

limits: $(BUILT) ## measure the store at its limits: stalls, peaks, the longest recovery
	@node --import tsx scripts/limits.ts

token: $(BUILT) ## print a token for the development key; SUB=name says whose
	@node dist/main.js token --sub '$(SUB)'

dist: $(BUILT) ## make what is released, in release/: the npm package, and a folder with its archive that node alone runs
	@node --import tsx scripts/dist.ts

sbom: $(INSTALLED) ## print what is shipped as a software bill of materials (CycloneDX)
	@npm sbom --sbom-format cyclonedx --sbom-type application --omit dev

clean: ## remove what was built and installed; data/ stays
	rm -rf build dist release node_modules

$(INSTALLED): package.json package-lock.json
	npm ci --ignore-scripts --include=dev --no-audit --no-fund
	@touch $@

$(BUILT): $(INSTALLED) tsconfig.json $(SOURCES)
	@rm -rf dist
	npx tsc
