"""The command line: ``workbench run | plan | schedule | partition | sweep | doctor | ...``.

It keeps what evaluators of the published artifact know (``-m -l -b -w`` and their defaults) and
adds what they missed: ``-h`` is help, a wrong value is one sentence on standard error and nothing
is written.

Exit codes: 0 done; 2 the input is wrong, or does not fit the budgets; 3 a run ended, with a record,
in anything but ok; 130 interrupted (after everything that ran was ended).

Nothing here imports torch: what trains does so in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from workbench import __version__
from workbench.cli.schedule_flags import add_schedule_flags
from workbench.cli.spec import Parser, add_results_flag, add_spec_flags, in_flags, specs_from
from workbench.cli.words import BAD_INPUT, INTERRUPTED, NOT_OK, OK, complain, parse_parameter
from workbench.core import methods
from workbench.runs.store import Store

ALONE = ("doctor", "page", "varuna", "partition", "results", "aceso", "export", "rows")
"""Verbs whose flags are their own business."""
OF_RUNS = ("export", "rows")
"""Verbs among them whose complaints are about fields of runs."""
PUBLISHED_WINDOW = 4
"""The artifact's default, for `run` of its model; the planner chooses that of others."""

DESCRIPTION = """Train models that do not fit on the GPUs at hand, and compare the methods that
do it. Exit codes: 0 done; 2 the input is wrong, or does not fit; 3 a run ended in anything but ok;
130 interrupted."""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code; never lets a user's mistake become a traceback."""
    arguments = None
    try:
        # A polite kill of the command line must end what it runs, like Ctrl-C.
        signal.signal(signal.SIGTERM, _interrupt)
        words = list(sys.argv[1:] if argv is None else argv)
        if words and words[0] in ALONE:
            if words[0] in OF_RUNS:
                arguments = argparse.Namespace(set=[], spec=None)
            room = "workbench" if words[0] in ("doctor", "page") else "workbench.cli"
            return import_module(f"{room}.{words[0]}").main(words[1:])
        if words[:1] == ["run"] and any(word.partition("=")[0] == "--config" for word in words):
            return import_module("workbench.cli.original").main(words[1:], main)
        # Options of another package's method are flags, too.
        methods.lookup(_method_in(words))
        arguments = make_parser().parse_args(words, argparse.Namespace(words=words))
        return arguments.handler(arguments)
    except (ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # the reader of our output has enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return OK
        complain(in_flags(" ".join(str(error).split()), arguments))
        return BAD_INPUT
    except KeyboardInterrupt:
        complain("interrupted; everything that was running has been ended")
        return INTERRUPTED


def _method_in(words: Sequence[str]) -> str | None:
    """The method that is named, however its flag is written."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-m", "--method", nargs="?")
    return parser.parse_known_args(words)[0].method


def make_parser() -> argparse.ArgumentParser:
    """All verbs and flags."""
    parser = Parser(prog="workbench", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"workbench {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)

    run = verbs.add_parser(
        "run",
        help="train with one method, or with all of them",
        usage="workbench run -m METHOD [-l LAYERS] [--hidden H] [-b BATCH] [-w WINDOW] [options]",
    )
    shown = f"{PUBLISHED_WINDOW}; auto for other models"
    add_spec_flags(run, "all runs one after the other", window=shown)
    _add_store_flags(run)
    run.add_argument("--force", action="store_true", help="run although there is a record")
    run.add_argument("--timeout", type=float, metavar="SECONDS", help="end a run after this time")
    run.add_argument(
        "--log", default="", metavar="tensorboard|wandb",
        help="write loss, held-out loss, learning rate, gradient norm, speed and bytes of each "
        "tier with this package into the run's folder, live; wandb stays offline unless "
        "WANDB_MODE says otherwise",
    )  # fmt: skip
    run.set_defaults(handler=_run)

    plan = verbs.add_parser(
        "plan",
        help="does it fit, with which method, how fast, what binds",
        usage="workbench plan [-l LAYERS] [--hidden H] [--device-memory M] [options]",
    )
    add_spec_flags(plan, "default: all, recommending one", window="auto", peers=True)
    _add_store_flags(plan)
    plan.add_argument(
        "--machine", metavar="NAME|FILE.json",
        help="another machine by name, such as h100-80gb, or from a file, instead of this one",
    )  # fmt: skip
    plan.add_argument(
        "--largest", action="store_true", help="the most layers that fit, instead of -l"
    )
    plan.add_argument(
        "--measure", action=argparse.BooleanOptionalAction,
        help="first time the model's layers on this machine, without training; --no-measure: "
        "measure nothing (default: the machine's rates, once, where no time can be told)",
    )  # fmt: skip
    plan.set_defaults(handler=_plan)

    layers = verbs.add_parser(
        "layers",
        help="units that a model is cut into, their parameters and the tensors between them",
        usage="workbench layers [-l LAYERS] [--hidden H] [--set family=FAMILY] [options]",
    )
    add_spec_flags(layers, None, window="auto")
    layers.add_argument("--operators", action="store_true", help="operators that plans cut instead")
    layers.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    layers.set_defaults(handler=_layers)

    schedule = verbs.add_parser("schedule", help="passes of each rank of a pipeline, by order")
    add_schedule_flags(schedule)
    schedule.set_defaults(handler=_schedule)

    sweep = verbs.add_parser("sweep", help="run a sweep file, resumed where it was left")
    sweep.add_argument("file", type=Path, metavar="FILE", help="JSON: base, grid, runs, results")
    _add_store_flags(sweep, None)
    sweep.add_argument("--force", action="store_true", help="run points that have a record, too")
    sweep.add_argument("--retry-failed", action="store_true", help="run errors and time-outs again")
    sweep.add_argument("--timeout", type=float, metavar="SECONDS", help="end a run after this time")
    sweep.add_argument("--dry-run", action="store_true", help="list the runs that would be made")
    sweep.set_defaults(handler=_sweep)

    trust = verbs.add_parser("trust", help="seal checkpoints that no run reads, if they are sound")
    trust.add_argument("folder", type=Path, metavar="FOLDER", help="a checkpoint, or its run")
    trust.set_defaults(handler=_trust)

    # Their flags are their own business; `main` hands them over before they come here.
    verbs.add_parser("doctor", help="measure this machine, say what can run on it")
    verbs.add_parser("page", help="serve the dashboard to a browser on this machine")
    verbs.add_parser("rows", help="the first rows of a file as tokens, the trained ones marked")
    verbs.add_parser("varuna", help="train over hosts that come and go; status, stop, notice")
    verbs.add_parser("partition", help="stages of an operator graph, and the device of each")
    verbs.add_parser("aceso", help="plans of tp, dp, stages, recomputation: cost, search")
    verbs.add_parser("results", help="held-out figures over seeds, by algorithm and batch")
    verbs.add_parser("export", help="weights of a run in a folder, for transformers and others")

    reproduce = verbs.add_parser("reproduce", help="run all figures and tables; a report")
    one = "a figure or table, such as fig8a or harmony_12; an unknown name lists all"
    reproduce.add_argument("--only", action="append", metavar="EXHIBIT", help=one)
    figure = verbs.add_parser("figure", help="run and draw one figure or table")
    figure.add_argument("only", nargs=1, metavar="EXHIBIT", help=one)
    for exhibit in (reproduce, figure):
        exhibit.add_argument(
            "--size", default="smoke", metavar="smoke|small|paper",
            help="smoke (default) trains small models on any machine, small needs a GPU, paper is "
            "the published size, simulated where there is no GPU",
        )  # fmt: skip
        exhibit.add_argument(
            "-p", "--parameter", action="append", default=[], metavar="KEY=VALUE",
            help="a setting of the figure, such as batch=8 or window='2, 4, 8'",
        )  # fmt: skip
        exhibit.set_defaults(handler=_reproduce)
    report = verbs.add_parser("report", help="write the report again from the present results")
    report.set_defaults(handler=_report)
    for verb in (reproduce, figure, report):
        add_results_flag(verb)
    return parser


def _add_store_flags(parser: argparse.ArgumentParser, *default: None) -> None:
    add_results_flag(parser, *default)
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")


def _run(arguments: argparse.Namespace) -> int:
    from workbench.cli.run import run_specs

    return run_specs(arguments, PUBLISHED_WINDOW)


def _plan(arguments: argparse.Namespace) -> int:
    from workbench.cli.plan import print_plans, what_would_help
    from workbench.published import machines
    from workbench.runs.best import answer_all, fastest, largest, recommend, searching
    from workbench.runs.inputs import check_inputs, check_weights
    from workbench.runs.planning import examine, measure
    from workbench.runs.progress import Progress

    store, progress = Store(arguments.results), Progress(sys.stderr)
    if arguments.machine is not None:
        machines.find(arguments.machine, store.root)  # before anything takes seconds
    refused: dict[str, str] = {}
    if arguments.hf_config:
        progress.passing(f"reading {arguments.hf_config}")
    specs = specs_from(arguments, window="auto", peers=True, refused=refused)
    try:
        check_weights(specs[:1], store)
    except ValueError as error:
        if specs[0].weights != "auto":  # a path that was named
            raise
        complain(in_flags(f"the plan holds, but not its run: {error}", arguments))
    usual = ("stdlib", "bytes", "", "")
    named = [s for s in specs if (s.text, s.tokenizer, s.start_from, s.eval_text) != usual]
    check_inputs(named, store)
    if arguments.measure:
        if arguments.machine is not None:
            raise ValueError(f"--measure times this machine, and --machine is {arguments.machine}")
        measure(specs, store, complain)
    elif arguments.measure is None and arguments.machine is None:
        examine(specs, store, complain)
    ask = largest if arguments.largest else fastest
    if arguments.largest and (slow := searching(specs)):
        complain(f"{', '.join(slow)} search at each depth: some 10 s each, or minutes")
    answers, not_planned = answer_all(specs, store, arguments.machine, ask, progress.passing)
    progress.end()
    not_planned = {m: in_flags(why, arguments) for m, why in {**refused, **not_planned}.items()}
    best = recommend(answers)
    if arguments.json:
        printed = best.to_dict()
        if len(specs) > 1 or refused:
            printed["methods"] = [other.to_dict() for other in answers]
            printed["not_planned"] = not_planned
        print(json.dumps(printed, indent=1))
    else:
        print_plans(answers, best, not_planned, largest=arguments.largest)
    if not best.plan.fits:
        several = "the lines above say why" if answers[1:] and not arguments.json else ""
        found = what_would_help(answers, not_planned, store, arguments)
        complain(f"nothing fits: {several or best.plan.binding}; {found}")
        return BAD_INPUT
    return OK


def _layers(arguments: argparse.Namespace) -> int:
    from workbench.cli.layers import show_layers

    show_layers(arguments, specs_from(arguments, window="auto")[0].model)
    return OK


def _schedule(arguments: argparse.Namespace) -> int:
    from workbench.cli.schedule import show_schedule

    show_schedule(arguments)
    return OK


def _trust(arguments: argparse.Namespace) -> int:
    from workbench.cli.trust import trust

    for path in trust(arguments.folder):
        print(f"sealed: {path}")
    return OK


def _sweep(arguments: argparse.Namespace) -> int:
    from workbench.cli.plan import print_points
    from workbench.runs.progress import Progress
    from workbench.runs.sweep import SweepFile
    from workbench.sweep_process import run_visibly, sweep_of

    file = SweepFile.load(arguments.file)
    if file.written.exhibit:
        from workbench.exhibits import find

        name = find(file.written.exhibit).name
        raise ValueError(
            f"the sweep {arguments.file} is the exhibit {name}, which is run by "
            f"workbench figure {name} --size {file.written.size}"
        )
    sweep = sweep_of(
        file,
        arguments.results,
        timeout=arguments.timeout,
        retry_failed=arguments.retry_failed,
        force=arguments.force,
    )
    store = sweep.store
    for path, why in store.problems.items():
        complain(f"{path} is not counted: {why}")
    if file.note:
        complain(file.note)
    counts = sweep.counts()
    progress = Progress(sys.stderr, sweep=sweep)
    progress.line(
        f"{len(sweep.points)} runs in {store.root}: {counts['done']} done, "
        f"{counts['failed']} failed, {counts['pending']} to run"
    )
    if arguments.dry_run:
        print_points(sweep)
        return OK
    try:
        records = run_visibly(file, sweep, progress.on_event, progress.line)
    finally:
        progress.end()
    if arguments.json:
        print(json.dumps([json.loads(record.to_json()) for record in records], indent=1))
    else:
        progress.line(", ".join(f"{n} {state}" for state, n in sweep.counts().items()))
    counts = sweep.counts()
    return NOT_OK if counts["failed"] or counts["pending"] else OK


def _reproduce(arguments: argparse.Namespace) -> int:
    from workbench.reproduce import reproduce

    parameters = dict(parse_parameter(text) for text in arguments.parameter)
    report = reproduce(
        arguments.size, arguments.results, only=arguments.only, parameters=parameters, echo=print
    )
    print(report)
    return OK if report.ok else NOT_OK


def _report(arguments: argparse.Namespace) -> int:
    from workbench.reproduce import report

    print(report(arguments.results, echo=print))
    return OK


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
