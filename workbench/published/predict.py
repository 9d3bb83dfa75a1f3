"""The figures of STRONGHOLD's artifact as the simulator predicts them, on the machine of the paper.

Two variants of a method must not be confused:

* ``as published``: the schedule of the code that made the published figure, defects included, with
  that machine's constants. It says whether the simulator explains the published number.
* ``as this code runs it``: our own planner on the same machine: real AdamW on every element,
  ordered copies. It says what the method could have reached there. Its host AdamW rate is an
  assumption (machines.json); at 1 G parameters/s, 2.65 times slower, steps are at most 6 % longer.

No constant belongs to a point. Six runs calibrate the machine and the systems; the points they make
are marked ``calibrated``, all others are predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache

import pandas as pd

from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.methods.offload.evaluate import largest
from workbench.published.hardware import DEFAULT, calibrated, constants, published_profile
from workbench.published.tables import published
from workbench.schedule.plan import Plan
from workbench.schedule.schedule import DEVICE

AS_PUBLISHED, EXACT = "as published", "as this code runs it"
FIGURES = ("6a", "7a", "8a", "8b", "9")
BASELINES = ("megatron-lm", "l2l", "zero-offload", "zero-infinity")
LARGEST = {"megatron-lm": 32, "l2l": 78, "zero-offload": 48, "zero-infinity": 48}
"""Layers of each baseline's largest published model, at which figure 7a compares."""
DEPTHS = (16, 24, 32, 40, 48, 56, 64, 78, 92)
WINDOWS = (2, 4, 6, 8, 10, 12, 14, 15)
WINDOW = 15
"""Window of figures 7a, 8a and 8b; figure 6a has 4."""
MOST_LAYERS = 400
SIZE_NOTES = {
    "megatron-lm": "the published size was found in steps, by hand",
    "l2l": "device memory as its allocator fragments it; the published run was also short of host "
    "memory and was killed after 10 iterations",
    "zero-offload": "two copies of the weights that the allocator holds from the start decide",
    "zero-infinity": "restates the published limit: no log shows its host memory after the start",
    "stronghold": "host memory by the artifact's formula; the published 100 is a round number, at "
    "which the formula leaves 10 GiB free",
}


@dataclass(frozen=True, kw_only=True)
class Point:
    """One value of a figure."""

    method: str
    layers: int
    window: int | None = None
    variant: str = AS_PUBLISHED
    pair: str = ""
    spec: dict = field(default_factory=dict)
    """Further settings of the run."""

    def place(self) -> dict:
        """Columns that tell it from others."""
        names = ("method", "layers", "window", "variant", "pair")
        return {name: getattr(self, name) for name in names}

    def plan(self) -> Plan:
        """The plan of the point's run."""
        return _planner(self.method, self.variant)(self.run())

    def run(self) -> RunSpec:
        """The spec that the point stands for."""
        model = ModelSpec(layers=self.layers)
        window = self.window or "auto"
        return RunSpec.of(
            method=self.method, model=model, window=window,
            **{"activations": "recompute", **self.spec},
        )  # fmt: skip


def predict(figure: str) -> pd.DataFrame:
    """The rows of one figure. Raises ValueError for a figure that is not one of `FIGURES`.

    Columns: ``figure``, ``method``, ``layers``, ``window``, ``value``, ``unit`` (billion
    parameters, samples/s or ms, as published), ``source`` (always ``simulated``), ``variant``,
    ``pair`` (figure 7a: the baseline whose largest model it is), ``calibrated`` (the published
    value of this point was used to calibrate a constant), ``tier`` (figure 6a: the memory that one
    more layer would not fit), ``binding`` (what decides, in words), ``note``.
    """
    if figure not in FIGURES:
        raise ValueError(f"figure {figure!r} is not predicted; {', '.join(FIGURES)} are")
    return _predicted(figure).copy()


@cache
def _predicted(figure: str) -> pd.DataFrame:
    """Predictions from constants alone, so one answer is good for all callers: a report asks
    twice."""
    rows = _sizes() if figure == "6a" else _times(figure)
    table = pd.DataFrame([{"figure": figure, **row, "source": "simulated"} for row in rows])
    return table.astype({"window": "Int64"})


def compare(figure: str) -> pd.DataFrame:
    """Predicted (as published) beside published, with the relative deviation.

    Figure 6a compares layers with the README's table, the others medians of the artifact's logs.
    """
    keys = ["method", "layers", "window", "pair"]
    ours = predict(figure)
    ours = ours[ours["variant"] == AS_PUBLISHED]
    theirs = published().query("figure == @figure")
    theirs = theirs[theirs["origin"] == ("README table" if figure == "6a" else "artifact log")]
    if figure == "6a":
        keys = ["method"]
        ours, theirs = ours.assign(value=ours["layers"]), theirs.assign(value=theirs["layers"])
    columns = [*keys, "value"]
    table = ours[[*columns, "calibrated", "binding"]].merge(
        theirs[[*columns, "sound"]], on=keys, suffixes=("", "_published")
    )
    return table.assign(deviation=table["value"] / table["value_published"] - 1)


def _times(figure: str) -> Iterator[dict]:
    for point in _points(figure):
        plan = point.plan()
        seconds = plan.step_seconds
        in_ms = figure in ("8b", "9")
        yield {
            **point.place(),
            "value": 1000 * seconds if in_ms else point.run().batch / seconds,
            "unit": "ms" if in_ms else "samples/s",
            "calibrated": _is_calibrated(figure, point),
            "tier": "",
            "binding": plan.binding,
            "note": "; ".join(plan.notes),
        }


def _points(figure: str) -> Iterator[Point]:
    """The published points, then the same of our own runtime."""
    both = (AS_PUBLISHED, EXACT)
    if figure == "7a":
        for name, layers in LARGEST.items():
            yield Point(method=name, layers=layers, pair=name)
            for variant in both:
                yield _stronghold(layers, WINDOW, variant, pair=name)
    elif figure == "8a":
        for name in BASELINES:
            yield Point(method=name, layers=32)
        yield Point(method="l2l", layers=32, variant=EXACT)
        for variant in both:
            yield _stronghold(32, WINDOW, variant)
    else:
        pairs = [(n, WINDOW) for n in DEPTHS] if figure == "8b" else [(32, w) for w in WINDOWS]
        for variant in both:
            for layers, window in pairs:
                yield _stronghold(layers, window, variant)


def _stronghold(layers: int, window: int, variant: str, pair: str = "") -> Point:
    return Point(method="stronghold", layers=layers, window=window, variant=variant, pair=pair)


def _sizes() -> Iterator[dict]:
    """The largest model of each method that its planner says fits."""
    for point in (
        *(Point(method=name, layers=1) for name in BASELINES),
        Point(method="stronghold", layers=4, window=4),
        Point(method="l2l", layers=1, variant=EXACT),
        Point(method="stronghold", layers=2, window=2, variant=EXACT),
    ):
        shape = _roomiest if point.variant == EXACT and point.method == "stronghold" else _as_is
        layers = largest(point.layers, MOST_LAYERS, lambda n, p=point, s=shape: s(p, n).plan().fits)
        found = shape(point, layers)
        next_one = shape(point, layers + 1).plan()
        lack = next_one.binding.partition(": ")[2]
        yield {
            **point.place(),
            "layers": layers,
            "value": found.run().model.parameters / 1e9,
            "unit": "billion parameters",
            "calibrated": _is_calibrated("6a", replace(point, layers=LARGEST.get(point.method, 0))),
            "tier": next_one.lacking,
            "binding": f"{next_one.lacking}: with one layer more, {lack}",
            "note": SIZE_NOTES[point.method] if point.variant == AS_PUBLISHED else "",
        }


def _as_is(point: Point, layers: int) -> Point:
    return replace(point, layers=layers)


def _roomiest(point: Point, layers: int) -> Point:
    """The layout that needs least host memory: as many resident layers as the device holds."""
    bare = replace(point, layers=layers, spec={"resident": 0})
    profile = published_profile(bare.run())
    free = profile.hardware.device_bytes - bare.plan().peak_bytes[DEVICE]
    layer = profile.units[1].parameters * (2 * profile.weight_bytes + profile.state_bytes)
    resident = max(0, min(free // layer, layers - 2))
    return replace(bare, spec={"resident": resident})


def _is_calibrated(figure: str, point: Point) -> bool:
    return point.variant == AS_PUBLISHED and calibrated(
        DEFAULT, figure, point.method, point.layers, point.window
    )


def _planner(method: str, variant: str) -> Callable[[RunSpec], Plan]:
    """A method's planner on the published machine. Imported when asked for: some are adapters."""
    plan, extra = _exact(method) if variant == EXACT else _as_published(method)
    return lambda spec: plan(spec, published_profile(spec), *extra)


def _exact(method: str) -> tuple[Callable[..., Plan], tuple]:
    from baselines.l2l.planner import plan as l2l
    from workbench.methods.stronghold.planner import plan as stronghold

    return {"l2l": l2l, "stronghold": stronghold}[method], ()


def _as_published(method: str) -> tuple[Callable[..., Plan], tuple]:
    from baselines.l2l import artifact as l2l
    from baselines.megatron.planner import plan as megatron
    from baselines.zero_infinity.planner import plan as zero_infinity
    from baselines.zero_offload.planner import plan as zero_offload
    from baselines.zero_plan import Release
    from workbench.methods.stronghold import artifact as stronghold

    plan, kind = {
        "megatron-lm": (megatron, None),
        "l2l": (l2l.plan, l2l.Artifact),
        "zero-offload": (zero_offload, Release),
        "zero-infinity": (zero_infinity, Release),
        "stronghold": (stronghold.plan, stronghold.Artifact),
    }[method]
    return plan, () if kind is None else (kind(**constants(DEFAULT, method)),)
