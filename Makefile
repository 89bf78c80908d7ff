# Shortcuts. Every target does what the commands that it prints do; run those by hand if you like.
#
# Variables: NO_INSTALL=1 (say what is missing, install nothing), THREADS=n (tests at a time), PORT=n (make run),
# TOUR_ONLY=1 (make run: end after the tour), CARGO_TARGET_DIR as for cargo.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
CORES := $(shell nproc 2>/dev/null || echo 2)
# Each test has a server of its own, which mostly waits: three a core, but more than 8 at once gain nothing.
THREADS ?= $(shell n=$$((3 * $(CORES))); [ $$n -gt 8 ] && n=8; echo $$n)

.PHONY: help
help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r target text; do printf '%-20s %s\n' "$$target" "$$text"; done

.PHONY: run
run: ## Build, start a server with the module, show what it does, leave it running (Ctrl-C stops it)
	scripts/setup run
	cargo build --release
	scripts/run

.PHONY: build
build: ## Build the module, target/release/liblockfence.so, and the program, target/release/lockfence
	scripts/setup build
	cargo build --release
	cargo build --release -p lockfence-client --features cli

.PHONY: install
install: ## Install the program lockfence for yourself (cargo install: into ~/.cargo/bin)
	cargo install --path crates/client --features cli --locked

.PHONY: test
test: ## Run everything that must pass, on the servers that are there
	scripts/setup test
	scripts/servers || echo "scripts/servers failed: tests run on the servers that are there"
	cargo build --release
	CARGO_BUILD_BUILD_DIR=$(TARGET) cargo build --features test-panic --target-dir $(TARGET)/test-panic
	LOCKFENCE_MODULE=$(TARGET)/release/liblockfence.so cargo test --workspace --no-fail-fast -- --test-threads=$(THREADS)

.PHONY: lint
lint: ## Format, clippy, docs, dependencies, texts: all without a warning
	scripts/setup build
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo clippy -p lockfence-client -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps
	if cargo deny --version >/dev/null 2>&1; then cargo deny check; else echo "cargo deny: not run, it is not installed"; fi
	scripts/check-text

.PHONY: bench-quick
bench-quick: ## Compare with SET NX PX, BLPOP and plain keys on each server (about two minutes)
	scripts/setup run
	cargo build --release
	LOCKFENCE_MODULE=$(TARGET)/release/liblockfence.so cargo run --release -p lockfence-bench

.PHONY: servers
servers: ## Fetch the other servers that tests run on
	scripts/servers

.PHONY: clients
clients: ## Fetch the client libraries that docs/clients shows and tests/clients.rs runs
	scripts/clients

.PHONY: clean
clean: ## Remove everything that was built, the fetched servers too
	cargo clean
