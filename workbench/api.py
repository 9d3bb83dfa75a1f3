"""Runs, plans, sweeps and records from Python: what the command line does, with its results.

A spec is a `RunSpec`, or its fields, those of its model and options of its method by their names:
`run(method="stronghold", layers=8, hidden=256, device_memory="4GiB")`. Of `run` and `plan` the
model may be a Hugging Face folder's: `hf_config="FOLDER"`. Training happens in a process of its
own, as from the command line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli.spec import of_config, specs_for
from workbench.core.mistakes import in_a_sentence
from workbench.core.paths import as_text, user_path
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.runs.answer import Answer
from workbench.runs.best import answer_all, recommend
from workbench.runs.events import Event
from workbench.runs.inputs import check_inputs, check_methods, check_starts
from workbench.runs.logs import read_log
from workbench.runs.overrides import make_spec
from workbench.runs.progress import Progress
from workbench.runs.resolve import resolve
from workbench.runs.runner import run as run_spec
from workbench.runs.store import REPOSITORY_RESULTS, Store
from workbench.runs.sweep import VERSION, SweepFile
from workbench.sweep_process import run_visibly, sweep_of

if TYPE_CHECKING:
    from pandas import DataFrame

    from workbench.runs.export import Exported

Watch = Callable[[Event], None]


def run(
    spec: RunSpec | None = None,
    *,
    results: str | Path | None = None,
    force: bool = False,
    timeout: float | None = None,
    on_event: Watch | None = None,
    log: str = "",
    quiet: bool = False,
    **fields: Any,
) -> RunRecord:
    """Train, or return the record that there is unless `force`; `fields` change the spec.

    `results` is the folder of records, `timeout` in seconds; `on_event` hears of each step, and
    `log` names what writes curves, ``tensorboard`` or ``wandb``, into the run's folder. Unless
    `quiet`, progress is shown: below a notebook's cell with the losses, else on the standard error
    stream. Raises ValueError, one sentence, for what cannot run here; a run that fails has a record
    that says so.
    """
    with _one_sentence():
        store = _store(results)
        _must_be("timeout", timeout, (int, float, None), "seconds")
        resolved = resolve(make_spec(_fields(spec), as_text(_changes(spec, fields))), store.root)
        check_methods([resolved])
        check_inputs([resolved], store)
        check_starts([resolved], store)
        how = {"timeout": timeout, "log": log, "force": force}
        with _told(on_event, quiet, spec=resolved) as (progress, watch):
            record = run_spec(resolved, store, on_event=watch, **how)
            if progress is not None:
                progress.finish(record)
        return record


def plan(
    spec: RunSpec | None = None,
    *,
    results: str | Path | None = None,
    machine: str | None = None,
    **fields: Any,
) -> Answer:
    """The plan of the spec's method, on this machine or a known one; without a method, or for
    ``all``, that of the fastest which fits. Raises ValueError where none can be planned."""
    with _one_sentence():
        data, fields = _fields(spec), _changes(spec, fields)
        asked = fields.pop("method", data.get("method", "all"))
        specs = specs_for(data, fields, asked, peers=True)
        return recommend(answer_all(specs, _store(results), machine)[0])


def sweep(
    file: str | Path | dict[str, Any] | None = None,
    *,
    results: str | Path | None = None,
    force: bool = False,
    retry_failed: bool = False,
    on_event: Watch | None = None,
    quiet: bool = False,
    **fields: Any,
) -> list[RunRecord]:
    """Run a sweep file, its JSON, or one of these fields (`base`, `grid`, `runs`, `name`,
    `timeout`), and return the records of its points, in their order; what has one is not run again.
    The page shows it meanwhile, and so does the caller's notebook or terminal, as of `run`. Raises
    ValueError for a sweep that cannot be."""
    with _one_sentence():
        _must_be("file", file, (str, Path, dict, None), "a sweep file's path, or its JSON")
        if isinstance(file, str | Path):
            read = SweepFile.load(Path(file))
        else:
            data = {"version": VERSION, **(file or {}), **fields}
            read = SweepFile.parse(data, data.get("name", "sweep"))
        made = sweep_of(read, results, force=force, retry_failed=retry_failed)
        with _told(on_event, quiet, sweep=made) as (_, watch):
            return run_visibly(read, made, watch)


def records(
    results: str | Path | None = None, *, logs: str | Path | Sequence[str | Path] = ()
) -> DataFrame:
    """All records of a results folder, one a row: settings, status, losses, times and bytes; then
    a row for each of `logs`, files that STRONGHOLD's artifact, Megatron-LM or DeepSpeed printed,
    whose ``source`` is ``log``. Raises ValueError for a file that is no log of theirs."""
    import pandas

    with _one_sentence():
        table = _store(results).table()
        paths = [user_path(log) for log in ([logs] if isinstance(logs, str | Path) else logs)]
        rows = [read_log(path).row(path.name) for path in paths]
        return pandas.concat([table, pandas.DataFrame(rows)], ignore_index=True) if rows else table


def export(
    run: str | Path | RunRecord,
    folder: str | Path,
    *,
    results: str | Path | None = None,
    step: int | None = None,
    dtype: str = "auto",
) -> Exported:
    """Write the weights of a run (its record, key or folder) or of a checkpoint into a new folder
    that `from_pretrained` of transformers loads; of a model that is not Hugging Face's a folder for
    `load_state_dict`. `step` is one that was kept, by default the newest; ``fp32`` or ``bf16`` is
    another `dtype` than that of the weights the run began from. Raises ValueError for what cannot
    be exported."""
    from workbench.runs.export import export as export_kept

    with _one_sentence():
        _must_be("run", run, (str, Path, RunRecord), "a run's record, key or folder")
        _must_be("folder", folder, (str, Path), "the path of a folder")
        _must_be("step", step, (int, None), "a number of steps")
        named = run.key if isinstance(run, RunRecord) else run
        return export_kept(named, folder, _store(results), step=step, dtype=dtype)


@contextmanager
def _told(
    on_event: Watch | None, quiet: bool, **what: Any
) -> Iterator[tuple[Progress | None, Watch | None]]:
    """Show progress of a spec or a sweep where the caller looks, unless `quiet`. Yields the display
    and whoever is to hear of events."""
    if quiet:
        yield None, on_event
        return
    progress = _progress(**what)

    def watch(event: Event) -> None:
        progress.on_event(event)
        if on_event is not None:
            on_event(event)

    try:
        yield progress, watch
    except BaseException:
        progress.goes_on()
        raise
    finally:
        progress.end()


def _progress(**what: Any) -> Progress:
    ipython = sys.modules.get("IPython")
    if hasattr(ipython and ipython.get_ipython(), "kernel"):
        from workbench.ui.live_run import LiveRun

        return LiveRun(**what)
    return Progress(sys.stderr, **what)


def _fields(spec: RunSpec | None) -> dict[str, Any]:
    _must_be("spec", spec, (RunSpec, None), "a RunSpec, or its fields by name (method='plain')")
    return spec.to_dict() if spec else {}


def _changes(spec: RunSpec | None, fields: dict[str, Any]) -> dict[str, Any]:
    """Fields that change a spec, with the model of `hf_config` where that is among them."""
    path = fields.pop("hf_config", None)
    _must_be("hf_config", path, (str, Path, None), "a folder of Hugging Face, or its config.json")
    return fields if path is None else of_config(path, fields, _fields(spec), "hf_config")


def _must_be(name: str, value: object, kinds: tuple[type | None, ...], words: str) -> None:
    if not isinstance(value, tuple(kind or type(None) for kind in kinds)):
        raise ValueError(f"{name} is {value!r}; it must be {words}")


def _store(results: str | Path | None) -> Store:
    _must_be("results", results, (str, Path, None), "the path of a folder")
    return Store(REPOSITORY_RESULTS if results is None else results)


@contextmanager
def _one_sentence() -> Iterator[None]:
    with in_a_sentence():
        try:
            yield
        except OSError as error:
            raise ValueError(" ".join(str(error).split())) from error
