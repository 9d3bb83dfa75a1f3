"""All exhibits in one go: each notebook through papermill, then one report.

The notebooks that people read are what runs here, with their parameters set. An unknown parameter
is an error before anything runs (papermill would only warn). Each notebook has a kernel of its own.
Those that measure come first, one after the other, and the next one starts while a figure is drawn;
of the rest two run at a time. One that fails is reported, and the others still run. Interrupted by
Ctrl-C or a polite kill, everything that was started is ended first; killed without warning, the
kernel and the workers notice by themselves.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from workbench.core.notebook_files import quick_nbformat
from workbench.core.readable import format_seconds
from workbench.exhibits import EXHIBITS, find, open_exhibit, text_for
from workbench.model.corpus import STDLIB
from workbench.report import write_report
from workbench.report.outcomes import OUTCOMES, Outcome, folder_of, load_outcomes, save_outcomes
from workbench.runs.store import Store

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks" / "figures"
TYPES = {"bool": bool, "int": int, "float": (int, float), "str": str}
START_S = 300
"""A kernel on a busy machine may take this long to start."""
KERNEL_LOG = "kernel.log"
ROWS = "rows = exhibit.run("
"""Of the cell after which nothing runs any more."""
POLL_S = 0.1
END_S = 15
"""Workers and their guards end within this time of their kernel."""

Echo = Callable[[str], None]


@dataclass(frozen=True)
class Reproduced:
    """Result of a reproduction; prints as the path of the report."""

    report: Path
    outcomes: dict[str, Outcome]
    """By figure, of those that were asked for."""

    @property
    def ok(self) -> bool:
        """Whether every exhibit ran to its end."""
        return all(outcome.ok for outcome in self.outcomes.values())

    def __str__(self) -> str:
        return str(self.report)


def reproduce(
    size: str,
    results: str | Path,
    *,
    only: list[str] | None = None,
    parameters: dict[str, Any] | None = None,
    echo: Echo,
) -> Reproduced:
    """Run the exhibits (`only` some of them) at a size and write the report.

    Raises ValueError for an unknown exhibit, size, parameter or text, StoreError for a results
    folder that cannot be written, all before anything runs.
    """
    figures = [find(name).figure for name in only or EXHIBITS]
    figures.sort(key=lambda figure: not find(figure).measures)
    store = Store(results)
    values = {"size": size, "results": str(store.root), **(parameters or {})}
    notebooks = {figure: read_notebook(figure) for figure in figures}
    for figure, notebook in notebooks.items():
        check_parameters(notebook, values, figure)
        if "text" in values:
            values["text"] = text_for(find(figure), values["size"], values["text"], Path.cwd())
        open_exhibit(figure, values["size"], store.root, **_changes(figure, values))
    outcomes = load_outcomes(store, values["size"])
    save_outcomes(store, values["size"], outcomes)
    folder, ran = folder_of(store, values["size"]), {}
    with closing(_run(notebooks, folder, values, echo)) as ended:
        for head, figure, outcome in ended:
            ran[figure] = outcomes[figure] = outcome
            save_outcomes(store, values["size"], outcomes)
            words = f"done in {format_seconds(outcome.seconds)}"
            echo(f"{head}: {words if outcome.ok else f'failed: {outcome.message}'}")
    echo(f"figures, tables and notebooks are in {folder}")
    echo("writing the report")
    return Reproduced(write_report(values["size"], store.root, echo), ran)


def report(results: str | Path, *, echo: Echo) -> str:
    """Write the report of every size again that was reproduced here; returns their paths, a line
    each.

    Nothing runs. Raises ValueError when there is none, StoreError where one cannot be written.
    """
    store, paths = Store(results), []
    for file in sorted(store.root.glob(f"reports/*/{OUTCOMES}")):
        echo(f"writing the report of size {file.parent.name}")
        paths.append(str(write_report(file.parent.name, store.root, echo)))
    if not paths:
        raise ValueError(f"nothing has been reproduced in {store.root} yet: run reproduce first")
    return "\n".join(paths)


def _changes(figure: str, values: dict[str, Any]) -> dict[str, Any]:
    """Parameters that take the place of the size's, of those that were given."""
    return {name: values[name] for name in find(figure).takes if name in values}


def read_notebook(figure: str) -> Any:
    """The notebook of an exhibit. Raises ValueError where there is no checkout."""
    path = NOTEBOOKS / f"{find(figure).notebook}.ipynb"
    if not NOTEBOOKS.is_dir():
        raise ValueError(f"figures and reports are made in a checkout of Workbench: no {path}")
    return quick_nbformat().read(path, as_version=4)


def check_parameters(notebook: Any, values: dict[str, Any], figure: str) -> None:
    """Raises ValueError for a parameter that the notebook does not have, or of another type."""
    from papermill.inspection import inspect_notebook

    known = inspect_notebook(notebook)
    for name, value in values.items():
        if name not in known:
            raise ValueError(
                f"unknown parameter {name!r} of {find(figure).words}; known: {', '.join(known)}"
            )
        kind = known[name]["inferred_type_name"]
        if kind == "str" and known[name]["default"] == "None" and type(value) is int:
            continue  # of several numbers, one
        if not isinstance(value, TYPES[kind]) or (kind != "bool" and isinstance(value, bool)):
            raise ValueError(f"the parameter {name} is {value!r}; it must be of type {kind}")


def _run(
    notebooks: dict[str, Any], folder: Path, values: dict[str, Any], echo: Echo
) -> Iterator[tuple[str, str, Outcome]]:
    """Execute notebooks, each in a kernel of its own; yields how each is called and how it ended.
    After one that measures the next begins when it has its rows: while that is drawn the next one's
    kernel and first run start, and nobody measures yet. KeyboardInterrupt ends the kernels first.

    papermill runs in threads, because in the main one its client takes over the signal handlers.
    """
    before, ended, threads = _children(), SimpleQueue(), []

    def run(head: str, figure: str, has_rows: threading.Event) -> None:
        outcome = run_notebook(notebooks[figure], figure, folder, values, echo, has_rows.set)
        has_rows.set()
        ended.put((head, figure, outcome))

    try:
        for place, figure in enumerate(notebooks, start=1):
            head, has_rows = f"[{place}/{len(notebooks)}] {find(figure).words}", threading.Event()
            echo(f"{head}: {find(figure).title}")
            threads.append(threading.Thread(target=run, args=(head, figure, has_rows), daemon=True))
            threads[-1].start()
            if place > 1:
                yield _taken(ended)
            while find(figure).measures and not has_rows.wait(POLL_S):
                pass
        yield _taken(ended)
    finally:
        _end(_children() - before)
        for thread in threads:
            thread.join(END_S)


def _taken(ended: SimpleQueue) -> Any:
    """The next of the queue; a signal is heard meanwhile."""
    while ended.empty():
        time.sleep(POLL_S)
    return ended.get()


def run_notebook(
    notebook: Any,
    figure: str,
    folder: Path,
    values: dict[str, Any],
    echo: Echo,
    has_rows: Callable[[], None],
) -> Outcome:
    """Execute a notebook in a kernel of its own; `has_rows` is called when nothing runs any
    more."""
    name = f"{find(figure).notebook}.ipynb"
    started, begun_s = datetime.now(UTC).isoformat(), time.monotonic()
    error = _execute(notebook, folder / name, values, echo, has_rows)
    return Outcome(
        ok=error is None,
        message=_sentence(error) if error else "",
        seconds=time.monotonic() - begun_s,
        started=started,
        notebook=name,
        text=values.get("text", STDLIB),
        changes=_changes(figure, values),
    )


def _execute(
    notebook: Any, path: Path, values: dict[str, Any], echo: Echo, has_rows: Callable[[], None]
) -> BaseException | None:
    import papermill

    def executed(cell: Any, **_: Any) -> None:
        if ROWS in cell.source:
            has_rows()

    try:
        with (path.parent / KERNEL_LOG).open("ab") as log:
            papermill.execute_notebook(
                notebook,
                path,
                parameters=values,
                progress_bar=False,
                stdout_file=_Lines(echo),
                start_timeout=START_S,
                kernel_manager_class=_manager(log),
                on_cell_executed=executed,
            )
    except BaseException as error:
        return error
    return None


def _manager(log: IO[bytes]) -> type:
    """Kernels whose own messages go to a file: they concern nobody unless one dies. They begin in
    the notebooks' folder; papermill would take this whole process there."""
    from jupyter_client.manager import AsyncKernelManager

    class Manager(AsyncKernelManager):
        def start_kernel(self, **options: Any) -> Any:
            return super().start_kernel(**options | {"stderr": log, "cwd": str(NOTEBOOKS)})

    return Manager


class _Lines:
    """The notebook's own progress, passed on a line at a time."""

    def __init__(self, echo: Echo) -> None:
        self._echo, self._rest = echo, ""

    def write(self, text: str) -> None:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._echo(f"    {line}")

    def flush(self) -> None:
        """Whole lines are passed on at once."""


def _children() -> set[Any]:
    """This process's descendants: kernels, and the guards and workers below them."""
    import psutil

    return set(psutil.Process().children(recursive=True))


def _end(processes: set[Any]) -> None:
    """End kernels, give what is below them time to end by itself, then end the rest."""
    import psutil

    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.ppid() == os.getpid():
                process.kill()
    _, alive = psutil.wait_procs(processes, timeout=END_S)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _sentence(error: BaseException) -> str:
    """Why a notebook failed, in one line."""
    name, words = getattr(error, "ename", ""), getattr(error, "evalue", "")
    text = f"{name}: {words}" if name else f"{type(error).__name__}: {error}"
    return " ".join(text.split())
