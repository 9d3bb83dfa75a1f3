"""``workbench run``: specs are checked, and run one after the other.

Where they name a configuration of Hugging Face, to check them takes as long as to import torch and
transformers, so the processes that train are started first (runs/ahead.py).
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext
from typing import Any

from workbench.cli.spec import in_flags, specs_from
from workbench.cli.words import BAD_INPUT, NOT_OK, OK, complain
from workbench.core import methods
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.runs.ahead import Ahead, pays
from workbench.runs.progress import Progress
from workbench.runs.store import Store


def run_specs(arguments: argparse.Namespace, window: int) -> int:
    """Exit code of the verb; `window` is the default of the published model."""
    if arguments.method is None and arguments.spec is None:
        raise ValueError(f"which method? give -m with one of {', '.join(methods.known())}, or all")
    store = Store(arguments.results)
    how = {"force": arguments.force, "timeout": arguments.timeout, "log": arguments.log}
    progress = Progress(sys.stderr)
    with _ahead(arguments, store) as ahead:
        if arguments.hf_config and sys.stderr.isatty():
            progress.passing(f"reading {arguments.hf_config}")
        try:
            specs = _checked(arguments, window, store, how)
        finally:
            progress.end()
        records = [_run(spec, store, arguments, {**how, "ahead": ahead}) for spec in specs]
    if arguments.json:
        printed = [json.loads(record.to_json()) for record in records]
        print(json.dumps(printed if len(specs) > 1 else printed[0], indent=1))
    return max(_code(record) for record in records)


def _ahead(arguments: argparse.Namespace, store: Store) -> Any:
    """Processes for the one run that is asked for, if that imports much and this machine has cores
    for it; else None."""
    if not arguments.hf_config or arguments.method in (None, "all") or not pays():
        return nullcontext()
    usual = {"device": "auto", "device_memory": "", "host_memory": ""}
    given = [getattr(arguments, word, value) for word, value in usual.items()]
    return Ahead(store.root, [arguments.hf_config, *given])


def _checked(
    arguments: argparse.Namespace, window: int, store: Store, how: dict[str, Any]
) -> list[RunSpec]:
    """The specs, all of which are seen to be possible. Raises ValueError."""
    from workbench.runs import inputs
    from workbench.runs.resolve import resolve
    from workbench.runs.runner import Job

    specs = [resolve(s, store.root) for s in specs_from(arguments, window=window)]
    inputs.check_methods(specs)
    inputs.check_modules(specs)
    weights = inputs.check_weights(specs, store)
    for spec in specs:
        Job(spec, store, **how)
    inputs.check_inputs(specs, store)  # which keeps tokens, as the next one
    inputs.check_starts(specs, store)
    for line in weights:
        Progress(sys.stderr).line(line)
    return specs


def _run(
    spec: RunSpec, store: Store, arguments: argparse.Namespace, how: dict[str, Any]
) -> RunRecord:
    """Run one, and tell of it."""
    from workbench.runs.kept import where_kept
    from workbench.runs.logged import where_logged
    from workbench.runs.progress import describe_record, describe_spec
    from workbench.runs.runner import run
    from workbench.runs.starts import start_words

    progress = Progress(sys.stderr, spec)
    progress.line(describe_spec(spec))
    try:
        record = run(spec, store, on_event=progress.on_event, **how)
    except KeyboardInterrupt:
        progress.goes_on()
        raise
    finally:
        progress.end()
    if record.status != "ok":
        progress.goes_on()
        refusal = in_flags(record.message, arguments)
        complain(refusal if record.refused else describe_record(record))
    elif not arguments.json:
        print(describe_record(record), flush=True)
        progress.line(in_flags(where_kept(spec, record.key, store), arguments))
    if (words := start_words(record.start)) and not record.refused:
        progress.line(f"{words}{f'; the machine was busy: {record.busy}' * bool(record.busy)}")
    if words := where_logged(arguments.log, store.folder(record.key)):
        progress.line(words)
    if not arguments.json:
        print(f"record: {store.folder(record.key) / 'record.json'}", flush=True)
    return record


def _code(record: RunRecord) -> int:
    """Exit code of one record."""
    if record.status == "ok":
        return OK
    return BAD_INPUT if record.refused else NOT_OK
