# Nearfield. `make train` and `make test` work on a fresh Debian machine with Rust and Python 3.

TORCH_VERSION := 2.13.0
# Only for tests, which compare models with those of transformers.
TRANSFORMERS_VERSION := 5.24.0
MDBOOK_VERSION := 0.5.4
PYTHON ?= python3
VENV := .venv
NEARFIELD := target/release/nearfield
RUN ?= runs/train
DRIVES := $(foreach k,0 1 2 3,--drive $(RUN)/drive$(k))
DATA ?=

# libtorch comes from the Python package, unless LIBTORCH names another one.
ifdef LIBTORCH
TORCH_READY :=
else
TORCH_READY := $(VENV)/.torch-$(TORCH_VERSION)-transformers-$(TRANSFORMERS_VERSION)
export LIBTORCH_USE_PYTORCH := 1
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
endif

# Of the SmartSSD.
PLATFORM ?= xilinx_u2_gen3x4_xdma_gc_2_202110_1

.PHONY: help build train test test-long csim csim-xilinx bitstream hw_emu check docs bench overlap peers clean system-packages test-packages

help: ## Shows this list
	@grep -hE '^[a-z_-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

build: system-packages $(TORCH_READY) ## Builds the command at target/release/nearfield
	cargo build --release -p nearfield

train: build ## Trains a small GPT on four drives (DATA=path for your own text, RUN=dir for another place)
	@mkdir -p $(foreach k,0 1 2 3,$(RUN)/drive$(k))
	$(NEARFIELD) calibrate $(DRIVES) --out $(RUN)/fabric.toml
	$(NEARFIELD) train --config examples/train.toml $(DRIVES) --out $(RUN) --fabric $(RUN)/fabric.toml --overwrite $(if $(DATA),--data $(DATA))

test: system-packages test-packages $(TORCH_READY) ## Runs all tests
	cargo test --release --workspace

test-long: system-packages test-packages $(TORCH_READY) ## Runs the tests that take many minutes
	cargo test --release --workspace -- --ignored

csim: ## Runs the FPGA kernels' test bench, with a C++ compiler alone
	$(MAKE) -C hls csim

csim-xilinx: $(TORCH_READY) ## The same with Xilinx's open headers (a minute; downloads the Python package hls4ml)
	$(MAKE) -C hls csim-xilinx PYTHON=$(if $(TORCH_READY),$(CURDIR)/$(VENV)/bin/python,$(PYTHON))

bitstream: ## Builds the FPGA's bitstream with Vitis (PLATFORM=name or path)
	cargo run --release -p nearfield-fpga --bin nearfield-bitstream -- --platform $(PLATFORM)

hw_emu: ## Builds the kernels for the simulation of the hardware with Vitis (PLATFORM=name or path)
	cargo run --release -p nearfield-fpga --bin nearfield-bitstream -- --platform $(PLATFORM) --emulation

check: system-packages $(TORCH_READY) ## Formatting, lints and documentation
	cargo fmt --all --check
	cargo clippy --release --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --release --workspace --no-deps

docs: ## Builds the book in docs/book
	@command -v mdbook >/dev/null || [ -x .tools/bin/mdbook ] || cargo install mdbook --version $(MDBOOK_VERSION) --locked --root .tools
	PATH="$$PATH:$(CURDIR)/.tools/bin" mdbook build docs

bench: build ## Measures update, codec and storage against this machine's limits
	$(NEARFIELD) bench update
	$(NEARFIELD) bench codec
	$(NEARFIELD) bench io --drive $(RUN)

overlap: build ## Measures what --overlap-update hides of the update
	scripts/overlap.py $(RUN)

peers: build ## Measures update and step beside PyTorch and DeepSpeed (installs them in .venv-peers)
	scripts/peers/run.sh $(RUN)

system-packages: ## Installs what a bare Debian machine lacks
	@scripts/system-packages.sh

test-packages: ## Installs what only the tests need
	@scripts/test-packages.sh

$(VENV)/.torch-$(TORCH_VERSION)-transformers-$(TRANSFORMERS_VERSION):
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check torch==$(TORCH_VERSION) numpy transformers==$(TRANSFORMERS_VERSION)
	touch $@

clean: ## Removes what was built (not .venv, not runs)
	cargo clean
