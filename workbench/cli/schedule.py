"""``workbench schedule``: what an order of passes makes each rank of a pipeline do.

Prints a line a stage, times the step, and draws or exports it. Passes take one quantum forward and
two backward, or the microseconds that are given; nothing is measured, and no model is needed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from workbench.cli import stage_orders
from workbench.cli.schedule_flags import JITTER, PARTS, PUBLISHED, STRICT
from workbench.methods.ftpipe import orders as ftpipe_orders
from workbench.methods.pipeline import ideal, orders, quick
from workbench.methods.pipeline.jitter import Jitter
from workbench.methods.pipeline.orders import (
    B,
    F,
    I,
    Order,
    Pass,
    R,
    W,
    gpipe_as_varuna_has_it,
    lists,
)  # fmt: skip
from workbench.schedule.action import COMPUTE, Kind

MOST, DRAWN = 512, 512
"""Most ranks, chunks and copies; most micro-batches of a drawing that can still be read."""
PASSES = 1 << 18  # forward passes of all ranks: 10,000 micro-batches on 26 of them
US = 1e-6
LONGEST_S = 1e6
"""Longest pass or message that can be timed."""


def show_schedule(arguments: argparse.Namespace) -> None:
    """Print, and draw and export where asked. Raises ValueError for what cannot be."""
    name, ranks, micros = arguments.order, arguments.ranks, arguments.microbatches
    if name in ftpipe_orders.ORDERS:
        stage_orders.show(arguments)
        return
    if name not in orders.ORDERS:
        known = ", ".join((*orders.ORDERS, *ftpipe_orders.ORDERS))
        raise ValueError(f"unknown order {name!r}; known: {known}")
    if given := [each for each in stage_orders.OWN if getattr(arguments, each)]:
        raise ValueError(f"--{given[0].replace('_', '-')} has no meaning for {name}; leave it out")
    counts = {
        "ranks": ranks, "microbatches": micros, "per-host": arguments.per_host,
        "stash": micros if arguments.stash is None else arguments.stash,
        "seeds": arguments.seeds, "replicas": arguments.replicas,
        "chunks": 1 if arguments.chunks is None else arguments.chunks,
    }  # fmt: skip
    for what, number in counts.items():
        most = PASSES if what in ("microbatches", "stash") else MOST
        if not 1 <= number <= most:
            raise ValueError(f"{what} is {number}; it must be 1 to {most}")
    most = PASSES // (ranks * counts["chunks"]) if arguments.gantt is None else DRAWN
    if micros > most:
        raise ValueError(f"microbatches is {micros}; so many ranks, or a drawing, have {most}")
    order = orders.ORDERS[name]
    chunks = arguments.chunks or (2 if order.chunked else 1)
    rule = _rule(arguments, order)
    passes = _passes(arguments, order, chunks)
    times = _Times.read(arguments.us, ranks * chunks, ranks, arguments.per_host)
    jitter = _jitter(arguments, times)
    ran = quick.timeline(passes, times.passes, times.links, rule)
    if arguments.gantt is not None:
        _draw(arguments.gantt, ran, times.quanta, f"{name}, {micros} micro-batches")
    if arguments.csv is not None:
        arguments.csv.write_text(ideal.torch_csv(passes))
    wide = len(str(ranks - 1))
    for rank, own in enumerate(passes):
        print(f"{rank:>{wide}}  {' '.join(map(str, own))}")
    end = max(timed.end_s for timed in ran)
    busy = sum(timed.end_s - timed.start_s for timed in ran)
    print(f"{times.told(end)}, {1 - busy / (ranks * end):.1%} of them waited")
    if jitter is not None:
        steps = _disturbed(passes, times, rule, jitter, arguments)
        of_stage = [micros * (2 * own[F] + own[B]) for own in times.passes]
        work = max(sum(of_stage[rank::ranks]) for rank in range(ranks))
        print(
            f"with jitter {fmean(steps) / US:.0f} us a step; efficiency N(2f+b)/makespan "
            f"{fmean(work / each for each in steps):.3f}, the mean of {len(steps)} seeds from "
            f"{jitter.seed}"
        )
    if arguments.csv is not None and any(each.kind is R for own in passes for each in own):
        print("torch's runtime knows no recomputation: the CSV leaves it out")


def _jitter(arguments: argparse.Namespace, times: _Times) -> Jitter | None:
    """The jitter that is asked for, of the first seed."""
    text = arguments.jitter
    if text is None:
        return None
    words = text.split(",")
    if times.quanta or len(words) != len(JITTER):
        raise ValueError(
            f"--jitter is {text!r}; it must be {','.join(JITTER)} in microseconds, beside --us"
        )
    (compute,), (network,) = (
        _numbers(part, word, 1, "--jitter") for part, word in zip(JITTER, words, strict=True)
    )
    if arguments.seed < 0:
        raise ValueError(f"seed is {arguments.seed}; it must not be negative")
    return Jitter(compute_s=compute, network_s=network, seed=arguments.seed)


def _disturbed(
    passes: Sequence[Sequence[Pass]],
    times: _Times,
    rule: quick.Rule,
    jitter: Jitter,
    arguments: argparse.Namespace,
) -> list[float]:
    """Seconds of a step under each seed: those of the slowest copy."""
    found = []
    for seed in range(jitter.seed, jitter.seed + arguments.seeds):
        tables = (
            replace(jitter, seed=seed).draws(len(times.passes), arguments.microbatches, copy)
            for copy in range(arguments.replicas)
        )
        ran = (quick.timeline(passes, times.passes, times.links, rule, draws) for draws in tables)
        found.append(max(map(quick.end_s, ran)))
    return found


def _rule(arguments: argparse.Namespace, order: Order) -> quick.Rule:
    """How ranks go through their lists."""
    published = arguments.rule == PUBLISHED
    if published and arguments.order != "gpipe":
        raise ValueError(f"--order published is for gpipe; {arguments.order} has one order")
    if arguments.rule == STRICT and not order.recomputes:
        raise ValueError(f"--order list is for varuna; {arguments.order} is never left")
    if arguments.keep and not order.recomputes:
        raise ValueError(
            f"--keep is for varuna; {arguments.order} keeps unless --recompute is given"
        )
    if arguments.drain and not (order.recomputes or arguments.recompute or published):
        raise ValueError("--drain is about recomputations: give --recompute, too")
    turns = order.recomputes and arguments.rule != STRICT and not arguments.keep
    early = published or arguments.drain is not None
    return quick.Rule(turns=turns, early=early, stash=arguments.stash)


def _passes(arguments: argparse.Namespace, order: Order, chunks: int) -> list[list[Pass]]:
    """Passes of each rank, as the flags ask for them."""
    ranks, micros = arguments.ranks, arguments.microbatches
    if arguments.rule == PUBLISHED:
        return [[*gpipe_as_varuna_has_it(rank, ranks, micros)] for rank in range(ranks)]
    found = lists(arguments.order, ranks, micros, chunks)
    if arguments.keep:
        return [ideal.without_recomputation(own) for own in found]
    if arguments.recompute and not order.recomputes:
        return ideal.with_recomputation(found)
    return found


@dataclass(frozen=True, kw_only=True)
class _Times:
    """How long passes and messages take."""

    passes: list[dict[Kind, float]]
    """Stage -> kind of pass -> seconds, or quanta."""
    links: quick.Links
    quanta: bool

    @classmethod
    def read(cls, text: str | None, stages: int, ranks: int, per_host: int) -> _Times:
        """Read the text of --us for so many stages; without one times are quanta. Raises ValueError
        for a text of another form."""
        hosts = [position // per_host for position in orders.dealt(stages, ranks)]
        if text is None:
            share = {kind: quanta * ranks / stages for kind, quanta in ideal.QUANTA.items()}
            links = quick.Links(seconds=[0.0] * (stages - 1))
            return cls(passes=[share] * stages, links=links, quanta=True)
        words = text.split(",")
        if len(words) != len(PARTS):
            raise ValueError(f"--us is {text!r}; it must be four numbers: {','.join(PARTS)}")
        counts = (stages, stages, 1, 1)
        forward, backward, (near,), (far,) = map(_numbers, PARTS, words, counts)
        if not all([*forward, *backward]):
            raise ValueError(f"--us is {text!r}; passes must take longer than 0 microseconds")
        return cls(
            passes=[
                {F: f, R: f, B: b, I: b / 2, W: b / 2}
                for f, b in zip(forward, backward, strict=True)
            ],
            links=quick.Links(seconds=[near if a == b else far for a, b in pairwise(hosts)]),
            quanta=False,
        )

    def told(self, end: float) -> str:
        """A step of so many seconds or quanta, in words."""
        if self.quanta:
            return f"{end:g} quanta a step (1 forward, 2 backward)"
        return f"{end / US:.0f} us a step"


def _numbers(part: str, text: str, count: int, flag: str = "--us") -> list[float]:
    """Read one number for all of `count` stages, or one each; returns seconds for each."""
    try:
        found = [float(word) * US for word in text.split("/")]
    except ValueError:
        found = []
    if len(found) not in {1, count} or not all(0 <= each <= LONGEST_S for each in found):
        each = f", or {count} with / between them" if count > 1 else ""
        raise ValueError(
            f"{part} of {flag} is {text!r}; it must be one number of microseconds{each}, at most "
            f"{LONGEST_S / US:g}"
        )
    return found * count if len(found) == 1 else found


def _draw(path: Path, ran: Sequence[quick.Timed], quanta: bool, title: str) -> None:
    from workbench.schedule.draw import draw_timeline
    from workbench.schedule.simulate import Event

    events = [
        Event(
            f"{timed.each.kind}{timed.each.micro}", timed.each.kind, timed.each.chunk,
            timed.each.micro, timed.position, COMPUTE, 0, timed.start_s, timed.end_s,
        )
        for timed in ran
    ]  # fmt: skip
    unit = {"unit": "quanta"} if quanta else {}
    figure = draw_timeline(events, source="simulated", title=title, width_in=7.0, **unit)
    figure.savefig(path, dpi=200)
