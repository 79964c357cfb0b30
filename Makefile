# Nacre's commands. `make help` lists them.
SHELL := /bin/bash
.DELETE_ON_ERROR:

export PATH := $(HOME)/.cargo/bin:$(PATH)
# Tests of programs wait more than they compute: twice as many as there are processors run at once.
export NEXTEST_TEST_THREADS ?= $(shell expr 2 \* $$(nproc))

# What users run.
NACRE := target/release/nacre
LIBRADOS := target/release/librados.so
BUILD := cargo build --locked --release -p nacre -p nacre-librados
# Tests have a profile and a folder of their own (Cargo.toml).
TESTS := target/tests
TEST_BUILD := --locked --profile bench --target-dir $(TESTS)
# LINTS=yes lints what the tests compile: clippy-driver is rustc with clippy's lints, and this is how `cargo clippy` calls it.
LINTS ?=
LINTED := $(if $(LINTS),RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__)
NEXTEST := $(LINTED) cargo nextest run --locked --cargo-profile bench --target-dir $(TESTS)
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
DATA ?= ./data
PREFIX ?= /usr/local
# sudo, if the user can't write to the nearest parent of the target that exists.
INSTALL_SUDO = $(shell d="$(DESTDIR)$(PREFIX)"; until [ -e "$$d" ]; do d=$$(dirname "$$d"); done; [ -w "$$d" ] || echo sudo)
SEEDS ?= 1000
# The first seed: tests on several machines take seeds of their own.
FIRST_SEED ?= 1
# Tests of programs run against the release build, these against the test build too, for its assertions: processes that are killed.
DEBUG_TESTS := package(nacre) & kind(test) & test(/^(failures|stores)::/)
ARGS ?=
FUZZ_SECONDS ?= 30

# Names of Ceph's programs that the binary answers to.
CEPH_NAMES := ceph rados crushtool osdmaptool ceph-kvstore-tool ceph-bluestore-tool radosgw-admin rest-bench vstart.sh

BUILD_PACKAGES := clang cmake jq libclang-dev libprotobuf-dev libssl-dev lld make ninja-build pkg-config protobuf-compiler
TEST_PACKAGES := $(BUILD_PACKAGES) awscli binutils ceph-base ceph-common etcd-client etcd-server fio kcat librados-dev libradosstriper-dev libradosstriper1 librados2 maven openjdk-17-jre-headless openssl python3-boto3 python3-rados rabbitmq-server rclone restic s3cmd valgrind
# What makes Debian packages and tarballs, and what tests them in a system of their own.
DEB_PACKAGES := binutils dpkg-dev
LONG_TEST_PACKAGES := $(DEB_PACKAGES) debootstrap iproute2
BENCH_PACKAGES := $(TEST_PACKAGES) ceph-mon ceph-osd ceph-mgr radosgw

.PHONY: help run build check test test-long test-dependencies sim fuzz shuttle lint docs bench install install-files deb tarball libraries setup-build setup-test setup-bench clean

help: ## List these commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

run: build ## Set up, build and start a single-node cluster in $(DATA); Ctrl-C stops it
	@exec $(NACRE) serve --data $(DATA) $(ARGS)

build: setup-build ## Build what users run: target/release/nacre and librados.so
	@echo "== building nacre"
	@# The libraries in C++ and C are compiled at the same time as the crates; the binary is linked with them. If that fails
	@# because one is not ready, it is tried again when they are.
	@{ scripts/build-librdkafka && scripts/build-rocksdb; } & $(BUILD) || built=failed; wait $$! && { [ -z "$$built" ] || $(BUILD); }

test: setup-build ## Set up and run every test
	@# The test runner is compiled at the same time as the product.
	@$(MAKE) --no-print-directory setup-test & $(MAKE) --no-print-directory build && wait $$!
	@$(MAKE) --no-print-directory test-dependencies
	@echo "== building and running the tests, those of programs against the release build"
	NACRE_TEST_BINARY=$(CURDIR)/$(NACRE) $(NEXTEST) --workspace
	@echo "== running tests of programs that are killed against the test build"
	$(NEXTEST) --workspace -E '$(DEBUG_TESTS)'
	$(LINTED) cargo test $(TEST_BUILD) --workspace --doc
	$(MAKE) --no-print-directory sim

check: setup-test libraries test-dependencies ## Tests of one crate, quickly: CRATE=osd
	$(NEXTEST) -p $(if $(filter nacre,$(CRATE)),nacre,nacre-$(CRATE))

test-long: test ## The tests with larger counts, and what takes longer
	$(call apt_install,$(LONG_TEST_PACKAGES))
	$(NEXTEST) --workspace --profile long --run-ignored all
	$(MAKE) --no-print-directory sim SEEDS=20000
	$(MAKE) --no-print-directory sim SEEDS=2000 ARGS=--long
	$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=10
	$(MAKE) --no-print-directory shuttle

# The tests' dependencies are compiled as the product's are: what is compiled for it is copied, and Cargo compiles the rest.
test-dependencies:
	@mkdir -p $(TESTS)/release
	@! [ -d target/release/deps ] || cp -a --no-clobber target/release/{.fingerprint,build,deps} $(TESTS)/release/

sim: libraries test-dependencies ## Simulate whole clusters: SEEDS=N, or SEED=S to replay one (MUTATION=M with a rule broken)
	@echo "== simulating"
	@# With a test among the targets Cargo takes the features that tests bring in: after `make test` nothing is compiled.
	$(LINTED) cargo build $(TEST_BUILD) --workspace --bins --test oracle
	$(TESTS)/release/nacre-sim $(if $(SEED),--replay $(SEED) $(if $(MUTATION),--mutation $(MUTATION)),--seeds $(SEEDS) --first-seed $(FIRST_SEED)) $(ARGS)

fuzz: libraries setup-test ## Fuzz decoders by libFuzzer, guided by coverage: FUZZ_SECONDS=N for each; CRATES="types index" for some
	@echo "== fuzzing"
	scripts/fuzz -s $(FUZZ_SECONDS) $(CRATES)

shuttle: libraries setup-test ## Run code that threads share under thousands of schedules
	@echo "== exploring interleavings"
	scripts/shuttle

lint: libraries ## Formatting and clippy
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

docs: build ## Generate docs/options.md and docs/compatibility.md, and the book of all pages: target/book/index.html
	$(NACRE) option-reference > docs/options.md
	$(NACRE) compatibility-reference > docs/compatibility.md
	@command -v mdbook >/dev/null || { echo "== installing mdbook (some minutes, once)"; \
	  CARGO_PROFILE_DEV_DEBUG=0 cargo install --locked --debug mdbook; }
	scripts/book target/book

bench: setup-bench build ## Measure Nacre beside the real Ceph in one run: bench/compare-ceph
	bench/compare-ceph $(ARGS)

install: build ## Install to $(PREFIX): bin/nacre, lib/nacre/bin (Ceph's names for it), lib/nacre (Ceph's libraries), units, completions, manual pages
	@# The build runs as the user who calls this and has Rust; only copying needs root.
	$(INSTALL_SUDO) $(MAKE) --no-print-directory install-files NACRE=$(NACRE) LIBRADOS=$(LIBRADOS) PREFIX=$(PREFIX) DESTDIR=$(DESTDIR)

install-files:
	install -D -m 755 $(NACRE) $(DESTDIR)$(PREFIX)/bin/nacre
	install -D -m 644 $(LIBRADOS) $(DESTDIR)$(PREFIX)/lib/nacre/librados.so.2
	@# One library by two names; the names without numbers are for linking.
	ln -sf librados.so.2 $(DESTDIR)$(PREFIX)/lib/nacre/libradosstriper.so.1
	ln -sf librados.so.2 $(DESTDIR)$(PREFIX)/lib/nacre/librados.so
	ln -sf libradosstriper.so.1 $(DESTDIR)$(PREFIX)/lib/nacre/libradosstriper.so
	@# fio looks for it when it starts, whatever engine it uses.
	clang -O2 -shared -fPIC -Wl,-soname,librbd.so.1 -o $(DESTDIR)$(PREFIX)/lib/nacre/librbd.so.1 crates/librados/librbd.c
	install -d $(DESTDIR)$(PREFIX)/lib/nacre/pkgconfig
	for pc in librados libradosstriper; do \
	  sed 's|@PREFIX@|$(PREFIX)|' crates/librados/$$pc.pc > $(DESTDIR)$(PREFIX)/lib/nacre/pkgconfig/$$pc.pc; done
	@# The program that Bareos runs for each part of a volume.
	ln -sf nacre $(DESTDIR)$(PREFIX)/bin/nacre-dplcompat
	install -d $(DESTDIR)$(PREFIX)/lib/nacre/bin
	for name in $(CEPH_NAMES); do ln -sf ../../../bin/nacre $(DESTDIR)$(PREFIX)/lib/nacre/bin/$$name; done
	install -d $(addprefix $(DESTDIR)$(PREFIX)/share/,bash-completion/completions zsh/site-functions fish/vendor_completions.d man)
	$(NACRE) completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/nacre
	$(NACRE) completions zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_nacre
	$(NACRE) completions fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/nacre.fish
	$(NACRE) man $(DESTDIR)$(PREFIX)/share/man
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	for unit in nacre.target nacre.service nacre-mon@.service nacre-osd@.service nacre-rgw@.service; do \
	  sed 's|/usr/local/bin|$(PREFIX)/bin|' contrib/systemd/$$unit > $(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit; done
	install -D -m 644 contrib/systemd/nacre.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/nacre.conf

deb: build ## Build the Debian packages nacre and nacre-librados: target/packages/*.deb
	$(call apt_install,$(DEB_PACKAGES))
	@NACRE=$(NACRE) LIBRADOS=$(LIBRADOS) scripts/package deb target/packages

tarball: build ## Build target/packages/nacre-VERSION-linux-MACHINE.tar.gz, for machines without Debian
	$(call apt_install,binutils)
	@NACRE=$(NACRE) LIBRADOS=$(LIBRADOS) scripts/package tarball target/packages

define apt_install
	@missing=$$(for p in $(1); do dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || echo $$p; done); \
	if [ -n "$$missing" ]; then \
	  command -v apt-get >/dev/null || { echo "please install: $$missing" >&2; exit 1; }; \
	  echo "== installing Debian packages: "$$missing; \
	  $(SUDO) apt-get update -qq && DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	fi
endef

setup-build:
	$(call apt_install,$(BUILD_PACKAGES))
	@command -v cargo >/dev/null || { echo "Nacre needs Rust 1.95 or newer: see https://rustup.rs" >&2; exit 1; }
	@scripts/build-rocksdb --configure
	@scripts/build-librdkafka --configure

libraries: setup-build
	@scripts/build-rocksdb
	@scripts/build-librdkafka

setup-test: setup-build
	$(call apt_install,$(TEST_PACKAGES))
	@# Without optimisation or debug information: it runs for seconds.
	@command -v cargo-nextest >/dev/null || { echo "== installing cargo-nextest (some minutes, once)"; \
	  CARGO_PROFILE_DEV_DEBUG=0 cargo install --locked --debug cargo-nextest --no-default-features --features default-no-update; }

setup-bench:
	$(call apt_install,$(BENCH_PACKAGES))

clean: ## Remove build output
	cargo clean
