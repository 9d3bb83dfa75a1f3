"""Runs one rank's part of a schedule that several train, in its own process (ranks/process.py)."""

from __future__ import annotations

from pathlib import Path

from workbench.core.reporter import compile_seconds
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.ranks.process import RankContext
from workbench.runtime.executor.board import Stage
from workbench.runtime.executor.executor import Perturb
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.rank import Rank
from workbench.schedule.serialize import from_json
from workbench.training.rank_evaluation import RankEvaluations
from workbench.training.run import load_batches


def run_rank(context: RankContext, perturb: Perturb | None = None) -> None:
    """Run all segments, each when it is allowed, and tell what was measured."""
    order, folder, board = context.order, context.folder, context.board
    spec = RunSpec.from_dict(order["spec"])
    model = make_model(spec.model, spec.seed)
    batches = load_batches(spec, model, folder.parent / "cache")
    schedule = from_json((folder / "schedule.json").read_text())
    context.parts.end("model, data, schedule")
    rank = Rank(
        spec,
        schedule,
        model,
        batches,
        folder=folder,
        board=board,
        host=[*map(Path, order["host"])],
        device=context.device,
        dtype=DTYPES[spec.dtype],
        perturb=perturb,
        record_from=order["record_from"],
        origin=order["origin"],
        on_failure=context.fail,
        part=context.parts.end,
    )
    start, evaluations = dict(context.parts.seconds), None
    if spec.evaluates and board.rank == 0:
        evaluations = RankEvaluations(spec, rank, model, batches, folder)
    try:
        board.come(Stage.READY)
        for first, end in order["segments"]:
            board.await_allowed(end)
            rank.run(first, end - first)
            board.drain(end)
            if evaluations is not None:
                evaluations.after(end, schedule.mesh.processes)
        context.tell(_measured(rank) | {"start": start})
    finally:
        rank.close()


def _measured(rank: Rank) -> dict:
    """Bytes, steps and events; of replicas, which walk the same lanes, the first one's events."""
    events = rank.executor.events if rank.board.replica == 0 else []
    return {
        "moved_bytes": rank.engine.traffic.moved,
        "moved_parts": rank.engine.traffic.parts,
        "settled": rank.engine.settled,
        "steps": len(rank.executor.step_numbers),
        "device_peak": rank.meter.peak,
        "compile_s": compile_seconds(),
        "events": [
            [e.name, e.kind, e.unit, e.microbatch, e.rank, e.lane, e.step, e.start_s, e.end_s,
             e.nbytes]
            for e in events
        ],
    }  # fmt: skip
