# Everything here runs from a fresh clone with Go and make; what else is needed
# is installed with the system's package manager, which says so.

GO ?= go
# More flags for go test in test and test-full.
TESTFLAGS ?=
# The packages that test-full tests: those with more to test than make test does.
FULL_PKGS ?= ./internal/pgserver ./internal/store ./internal/chaos ./model ./bench/...
# The seed of a chaos run.
SEED ?= 1
# What the demo breaks, to show that its checker sees it; empty: nothing.
SABOTAGE ?=

NEED = sh internal/tools/install-postgres.sh

.DEFAULT_GOAL := help
.PHONY: help test test-full check demo model chaos chaos-keys bench bench-full vet fmt

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: check ## all promises, with the race detector, on one Postgres (8 minutes at most)
	CGO_ENABLED=1 $(GO) test -race -count=1 -timeout 8m $(TESTFLAGS) ./...

check:
	@$(NEED) postgres cc git
	@unformatted=$$("$$($(GO) env GOROOT)/bin/gofmt" -l .); \
	if [ -n "$$unformatted" ]; then echo "not formatted (make fmt does it):"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./... ./bench/... ./examples/testsuite/...

test-full: ## what needs PgBouncer, spin, a browser or Postgres 14 to 18 (Debian; 60 minutes at most)
	@versions=$$(sh internal/tools/install-full.sh) || exit 1; \
	echo "PostgreSQL in $$versions"; \
	PATH="$$PATH:/usr/sbin" SQLSTREAMS_PG_VERSIONS="$$versions" \
	$(GO) test -tags full -count=1 -timeout 60m $(TESTFLAGS) $(FULL_PKGS)

demo: ## watch consumers being killed and nothing lost (SABOTAGE=... breaks it on purpose)
	@[ -n "$$DATABASE_URL" ] || $(NEED) postgres
	$(GO) run ./cmd/sqlstreams demo $(if $(SABOTAGE),--sabotage $(SABOTAGE))

model: ## check the protocol's model with spin
	@$(NEED) spin cc
	sh model/run.sh

chaos: ## a minute of real faults (SEED=n)
	@$(NEED) postgres
	$(GO) run ./internal/chaos/cmd/chaos -seed $(SEED)

chaos-keys: ## two minutes of kills while keys are ordered (SEED=n)
	@$(NEED) postgres
	$(GO) run ./internal/chaos/cmd/chaos -mode keys -seed $(SEED)

bench: ## the bars of speed, a short pass (10 minutes at most)
	@$(NEED) postgres
	cd bench && $(GO) run . short

bench-full: ## the bars of speed, the long pass
	@$(NEED) postgres
	cd bench && $(GO) run . full

vet: ## go vet
	$(GO) vet ./... ./bench/...

fmt: ## gofmt everything
	"$$($(GO) env GOROOT)/bin/gofmt" -w .
