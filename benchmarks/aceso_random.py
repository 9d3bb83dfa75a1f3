"""Random profiles of one layer of GPT, and the best of all its plans by trying every one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from random import Random

import numpy as np

from workbench.methods.aceso.ask import Ask
from workbench.methods.aceso.costs import NS_OF_MS, StageCost
from workbench.methods.aceso.database import ACTIVATIONS, COLUMNS, FORWARD
from workbench.methods.aceso.exact import dealings, splits
from workbench.methods.aceso.files import Files
from workbench.methods.aceso.plan import subject_of
from workbench.methods.aceso.space import Cluster, Space, uniform
from workbench.model.operators import operator_list

LAYER = operator_list("gpt", 1)


def random_files(draw: Random) -> Files:
    """Times that grow with samples and shrink with tp, each unevenly."""
    sizes = ((8, 16, 64), (8, 16, 64), (0, 0, 24, 200), (8, 16, 64, 256, 384), (0, 16), (0, 64))
    base = [
        (draw.uniform(50, 2000), draw.uniform(50, 3000), *map(draw.choice, sizes))
        for _ in LAYER.row_names
    ]
    held = {}
    for mbs, tp, algo in ((m, t, a) for m in (1, 2, 4, 8) for t in (1, 2, 4) for a in (0, 1)):
        lines = [",".join(("op_name", *COLUMNS))]
        for name, (f, b, i, o, w, a, fr, br) in zip(LAYER.row_names, base, strict=True):
            slow = draw.uniform(0.9, 1.3) * mbs**0.95 / tp**0.9
            numbers = (f * slow, b * slow, i * mbs, o * mbs, w / tp, a * mbs / tp**0.7, fr, br)
            lines.append(",".join((name, *(f"{each:.3f}" for each in numbers))))
        held[f"gpt_scale-layer_mbs{mbs}_tp{tp}_algo{algo}.csv"] = "\n".join(lines)
    speeds = ",".join(f"{7 + i / 2:.2f}" for i in range(11))
    held["p2p_intra_node.csv"] = ",".join(str(2**i) for i in range(11)) + "\n" + speeds
    return Files(place="random", names=frozenset(held), text=held.__getitem__)


def random_space(seed: int, gpus: int, cost: str = "published") -> Space:
    """With little memory: often no plan fits without recomputation."""
    draw = Random(seed)
    files = random_files(draw)

    def space(memory: float) -> Space:
        cluster = Cluster(nodes=1, per_node=gpus, memory=memory)
        subject = subject_of("scale-layer", "", 64, layers=1)
        return Ask(subject=subject, cluster=cluster, database=files, cost=cost).space()

    return space(space(1e6).first(1).cost.memory * draw.uniform(0.93, 1.7))


def best_of_all(space: Space, counts: range) -> float:
    """Milliseconds of the best plan whose stages have one tp and dp each, and any recomputation;
    infinite where none fits."""
    best, total = float("inf"), len(LAYER)
    for micro in space.micros:
        known: dict[tuple[int, int, int, int], list[StageCost]] = {}
        batches = space.costs.batches(space.subject.batch, micro)
        for count in counts:
            for gpus in dealings(space, count):
                for inner in combinations(range(1, total), count - 1):
                    cuts = (0, *inner, total)
                    shapes = []
                    for i, number in enumerate(gpus):
                        key = (cuts[i], cuts[i + 1], number, count - 1 - i)
                        if key not in known:
                            known[key] = [*_fastest(space, micro, *key)]
                        shapes.append(known[key])
                    for stages in product(*shapes):
                        best = min(best, max(space.costs.times(stages, batches)))
    return best


def _fastest(
    space: Space, micro: int, first: int, last: int, gpus: int, behind: int
) -> Iterator[StageCost]:
    """Of each shape of a stage the fastest that fits."""
    count, costs, turns = last - first, space.costs, space.costs.turns(behind, micro)
    kept = [i - first for i, o in enumerate(LAYER.operators)
            if o.kind in ("embedding", "head") and first <= i < last]  # fmt: skip
    flags = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
    flags = flags[flags[:, kept].sum(axis=1) == 0]
    both = flags[:, :-1] * flags[:, 1:]
    ends = costs.starts_layer[first + 1 : last] & costs.plain[first : last - 1]
    for tp, dp in splits(space, micro):
        if tp * dp != gpus:
            continue
        stage = uniform(count, tp, dp)
        cost = costs.stage(stage, first, micro, behind=behind)
        columns = costs.columns(stage, first, micro)
        held = columns[ACTIVATIONS, :-1] * both
        saved = held[:, ~ends].sum(axis=1)
        run = peak = np.zeros(len(flags), dtype=np.int64)
        for i in range(count - 1):
            run = np.where(both[:, i] == 1, run + held[:, i], 0)
            peak = np.maximum(peak, run)
            run = run * (not ends[i])
        excess = costs.excess(cost, space.cluster.memory) - saved * turns + peak
        times = (flags @ columns[FORWARD])[excess <= 0]
        if len(times):
            yield cost._replace(recompute=int(times.min()) / NS_OF_MS)
