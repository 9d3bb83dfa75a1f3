# Every target sets up .venv by itself; the second time that takes a fraction of a second.
#   make setup TORCH='torch==2.13.0 --index-url URL'   passes pip's arguments for torch
PYTHON ?= python3
BIN := .venv/bin
# Three test workers on two cores, since some tests wait; at most four. A fourth gained nothing there, and Ray starved.
WORKERS = $(shell $(PYTHON) -c 'import os; print(min(4, (os.cpu_count() or 1) * 3 // 2))')

# Both start many processes, each of which would compile what it imports where no bytecode is written.
reproduce test thorough: export PYTHONDONTWRITEBYTECODE =
PYTEST = $(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup reproduce test thorough bench lab docs lint format notebooks constraints clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup:  ## create or update .venv
	@$(PYTHON) scripts/setup.py $(if $(TORCH),--torch "$(TORCH)")

reproduce: setup  ## the main job: every exhibit at smoke size, one HTML report, a model that is fine-tuned
	$(BIN)/workbench reproduce --size smoke
	cd notebooks && ../$(BIN)/papermill --no-progress-bar finetune.ipynb ../results/reports/smoke/finetune.ipynb

test: setup  ## all tests that this machine can run, of large grids a half
	$(PYTEST)

thorough: setup  ## the same with whole grids
	$(PYTEST) --thorough

bench: setup  ## how soon pages, planners and runs answer, over what is promised; best on an idle machine
	$(BIN)/python -m benchmarks.answers

lab: setup  ## JupyterLab on 127.0.0.1 with its token on, at notebooks/
	@mkdir -p notebooks
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/jupyter lab --ServerApp.ip=127.0.0.1 \
	  --ServerApp.root_dir="$(CURDIR)" --ServerApp.default_url=/lab/tree/notebooks \
	  --LabApp.news_url= \
	  --LabApp.check_for_updates_class=jupyterlab.handlers.announcements.NeverCheckForUpdate \
	  $(if $(filter 0,$(shell id -u)),--allow-root) $(LAB_ARGS)

docs: setup  ## the manual: build/docs/index.html, after what is made of other files is made again
	$(BIN)/python -m pip install --quiet -c constraints.txt sphinx myst-parser
	$(BIN)/python scripts/docs.py write
	$(BIN)/python -m sphinx -q -W -b doctest docs build/docs
	$(BIN)/python -m sphinx -q -W -b linkcheck docs build/docs
	$(BIN)/python -m sphinx -q -W -b html docs build/docs

lint: setup  ## what a review would only repeat: style, spelling, notebooks
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell
	$(BIN)/python scripts/notebooks.py check

format: setup  ## rewrite the sources in the one style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

notebooks: setup  ## bring each .ipynb up to date with its exhibit, or the .py beside it
	$(BIN)/python scripts/notebooks.py sync

constraints: setup  ## write constraints.txt from what .venv holds
	$(BIN)/python scripts/constraints.py

clean:  ## remove .venv and caches; results stay
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
