# The two commands of the README are `make serve` and `make test`; both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One BLAS thread: several of them and MLX's own fight for the cores.
export OPENBLAS_NUM_THREADS := 1

# $(call venv,FOLDER): a virtual environment with pip. One without is half made (Ctrl-C, Debian without python3-venv) or uv's:
# pip is put into it, and only where that fails it is made anew.
venv = $(1)/bin/python -m pip --version >/dev/null 2>&1 || $(1)/bin/python -m ensurepip >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(1)

.PHONY: setup serve test test-clients test-deep test-usb-vm check format bench tiny vectors clean
.DEFAULT_GOAL := check

setup: $(VENV)/.installed

# Editable, so that a changed Python file needs no reinstall; changed C or metadata does.
$(VENV)/.installed: pyproject.toml setup.py $(wildcard backburner/native/*.c backburner/native/*.h)
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Backburner needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(call venv,$(VENV))
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

serve: setup
	$(BIN)/backburner serve --device loopback $(ARGS)

test: setup
	MLX_DISABLE_COMPILE=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest $(ARGS)

# Other people's clients against the server. They want many packages: not in .venv, and not for `make test`.
CLIENTS := build/clients-venv
test-clients: $(CLIENTS)/.installed
	MLX_DISABLE_COMPILE=1 HF_HUB_OFFLINE=1 $(CLIENTS)/bin/python -m pytest -m clients tests/clients $(ARGS)

$(CLIENTS)/.installed: pyproject.toml
	$(call venv,$(CLIENTS))
	$(CLIENTS)/bin/python -m pip install --quiet --upgrade pip
	$(CLIENTS)/bin/python -m pip install --quiet --editable '.[clients]'
	touch $@

# A FunctionFS gadget and its host in one emulated machine with Debian's kernel; skips, and says why, where packages are
# missing. Minutes. (Not for CI.)
test-usb-vm: setup
	$(BIN)/python -m scripts.usb_vm.run $(ARGS)

# Pages of 16,384 positions against float64, in every rounding mode: a minute and 64 MiB of weights each.
test-deep: setup
	BACKBURNER_DEEP_TESTS=1 $(BIN)/python -m pytest tests/test_coreml_numerics.py $(ARGS)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --collect-only -qq
	$(BIN)/python -m pytest -q tests/test_layer_order.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Ratios measured within one run; each prints one JSON object as its last line.
bench: setup
	@for b in link page decode peer prefill depth survive clients; do echo "== $$b"; $(BIN)/python benchmarks/$$b.py --json || exit 1; done

# Trains the embedded model anew: tokenizer, weights, export, evaluation, card. Over four hours on two idle cores; goes on
# where it was stopped.
tiny: setup
	$(BIN)/python -m pip install --quiet --editable '.[train]'
	$(BIN)/python -m scripts.train_tiny.train build/tiny --resume
	$(BIN)/python -m scripts.train_tiny.export build/tiny backburner/model/tiny
	$(BIN)/python -m scripts.train_tiny.record
	$(BIN)/python -m scripts.train_tiny.evaluate backburner/model/tiny --json build/tiny/evaluation.json
	$(BIN)/python -m scripts.train_tiny.card build/tiny backburner/model/tiny build/tiny/evaluation.json

vectors: setup
	$(BIN)/python -m scripts.make_vectors
	$(BIN)/python -m scripts.make_attention_vectors
	$(BIN)/python -m scripts.make_conversations
	$(BIN)/python -m scripts.make_coreml_vectors

clean:
	rm -rf $(VENV) $(filter-out build/tiny,$(wildcard build/*)) dist *.egg-info backburner/native/*.so
