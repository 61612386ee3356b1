# What a person types. Every target installs what it needs when that is missing or older than the lock file.
.DEFAULT_GOAL := help
.PHONY: help run dev build test check limits bench crash token clean

INSTALLED := node_modules/.package-lock.json
BUILT := dist/main.js
SOURCES := $(shell find src -name '*.ts')
# TEST=path names the test files to run; all of them otherwise.
TEST ?= $(shell find test -name '*.test.ts' | sort)
SUB ?= alice
ROUNDS ?= 50

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(BUILT) ## serve on 127.0.0.1:8080 with a development key, and print curl lines to paste
	@exec node dist/main.js serve --dev

dev: $(BUILT) ## the same, compiled and started again whenever a source file changes
	@npx tsc --watch --preserveWatchOutput & trap "kill $$!" EXIT; node --watch-path=dist dist/main.js serve --dev

build: $(BUILT) ## compile src/ to dist/

test: check ## build, check types, run all tests; TEST=file runs some
	@node --import tsx --test --test-concurrency=3 --test-timeout=120000 $(TEST)

check: $(BUILT) ## check the types of everything, tests and scripts included
	@npx tsc --noEmit --project test

# Variables on make's command line reach the script as environment: CHART, OUT, DUR, WARM, RUNS.
bench: $(BUILT) ## measure beside bare node:http; WORKLOADS='get20 post' runs some, CHART=file.svg draws them
	@node --import tsx scripts/bench.ts $(WORKLOADS)

crash: $(BUILT) ## kill the service under load, ROUNDS=n times, and look for what is lost; SEED=n repeats a run's choices
	@node --import tsx scripts/crash.ts --rounds $(ROUNDS) $(addprefix --seed ,$(SEED))

limits: $(BUILT) ## measure the store at its limits: stalls, peaks, the longest recovery
	@node --import tsx scripts/limits.ts

token: $(BUILT) ## print a token for the development key; SUB=name says whose
	@node dist/main.js token --sub '$(SUB)'

clean: ## remove what was built and installed; data/ stays
	rm -rf dist node_modules

$(INSTALLED): package.json package-lock.json
	npm ci --ignore-scripts --include=dev --no-audit --no-fund
	@touch $@

$(BUILT): $(INSTALLED) tsconfig.json $(SOURCES)
	@rm -rf dist
	npx tsc
