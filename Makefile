# Backline's chores. `make` lists them; `make check` is what CI runs.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Tools are pinned here, built from source by the Go command into an ignored folder, and never
# enter go.mod. A new version is a new file name, so changing the pin is all it takes.
TOOLS := $(CURDIR)/.tools
GOLANGCI_LINT_VERSION := v2.15.0
GOLANGCI_LINT := $(TOOLS)/golangci-lint-$(GOLANGCI_LINT_VERSION)

# What `make race` leaves out: internal/treetest has no goroutines to race, and `make test` ran it.
RACE_EXCEPT := /internal/treetest$$

BENCH ?= .
BENCHTIME ?= 1s
FUZZTIME ?= 30s
SOAK_TURNS ?= 20000
SOAK_KILLS ?= 200

.PHONY: help
help: ## List the targets.
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: check
check: fmt-check vet lint generated tidy test race ## Everything CI runs.

.PHONY: build
build: ## Build every package, and the command (when present) into bin/.
	go build ./...
	@if [ -d cmd/backline ]; then go build -o bin/ ./cmd/backline; fi

.PHONY: fmt
fmt: ## Format the Go files in place.
	gofmt -s -w $$(git ls-files -co --exclude-standard '*.go')

.PHONY: fmt-check
fmt-check: ## Fail if a Go file is not formatted.
	@bad=$$(git ls-files -co --exclude-standard '*.go' | while read -r f; do [ ! -f "$$f" ] || echo "$$f"; done | xargs -r gofmt -s -l); \
	if [ -n "$$bad" ]; then printf 'not formatted (run make fmt):\n%s\n' "$$bad" >&2; exit 1; fi

.PHONY: vet
vet: ## go vet.
	go vet ./...

.PHONY: lint
lint: $(GOLANGCI_LINT) ## The linters of .golangci.yml.
	$(GOLANGCI_LINT) run ./...

.PHONY: tools
tools: $(GOLANGCI_LINT) ## Install the pinned tools into .tools/.

$(GOLANGCI_LINT):
	@echo "installing golangci-lint $(GOLANGCI_LINT_VERSION) into .tools (some minutes, once)"
	@mkdir -p $(TOOLS)/new
	GOBIN=$(TOOLS)/new GOFLAGS= go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)
	@mv $(TOOLS)/new/golangci-lint $@ && rmdir $(TOOLS)/new

.PHONY: generate
generate: ## Write the generated files anew.
	go generate ./...

.PHONY: generated
generated: ## Fail if a generated file is not current (works on a copy; changes nothing).
	@copy=$$(mktemp -d); trap 'rm -rf "$$copy"' EXIT; \
	git ls-files -co --exclude-standard -z | while IFS= read -r -d '' f; do [ ! -e "$$f" ] || printf '%s\0' "$$f"; done > "$$copy/list"; \
	mkdir "$$copy/before" "$$copy/after"; \
	tar -c --null -T "$$copy/list" | tar -x -C "$$copy/before"; \
	cp -a "$$copy/before/." "$$copy/after/"; \
	(cd "$$copy/after" && go generate ./...); \
	diff -r -u "$$copy/before" "$$copy/after" || { echo 'generated files are not current: run make generate' >&2; exit 1; }

.PHONY: tidy
tidy: ## Fail if go.mod or go.sum is not tidy.
	go mod tidy -diff

.PHONY: test
test: ## The tests, as the README runs them.
	go test ./...

.PHONY: race
race: ## The tests under the race detector, in shuffled order.
	go test -race -shuffle=on $$(go list ./... | grep -v '$(RACE_EXCEPT)')

.PHONY: bench
bench: ## The benchmarks (BENCH=regexp BENCHTIME=1s).
	go test -run '^$$' -bench '$(BENCH)' -benchmem -benchtime $(BENCHTIME) ./...

.PHONY: fuzz
fuzz: ## Each fuzz test for a while (FUZZTIME=30s).
	@go test -run '^$$' -list '^Fuzz' ./... | awk '/^Fuzz/ { names[n++] = $$1 } /^ok / { for (i = 0; i < n; i++) print $$2, names[i]; n = 0 }' | \
	while read -r package name; do \
		echo "== $$package $$name"; \
		go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$package" < /dev/null; \
	done

.PHONY: soak
soak: ## The long tests (SOAK_TURNS=20000 SOAK_KILLS=200).
	BACKLINE_SOAK_TURNS=$(SOAK_TURNS) BACKLINE_SOAK_KILLS=$(SOAK_KILLS) go test -count=1 -timeout 60m -run Soak ./...

.PHONY: clean
clean: ## Remove what was built (tools stay).
	rm -rf bin dist
