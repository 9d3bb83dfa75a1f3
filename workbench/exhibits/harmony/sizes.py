"""Dials of Harmony's exhibits (``sizes/harmony.toml``), and the runs that they ask for.

Runs of size ``smoke`` are processes that talk by gloo on a processor. Their packs are pinned, so
that bytes can be held against a formula; exhibits share their runs. Cards of size ``paper`` are
capped at the published 11 GiB; where there are no GPUs plans on the published profiles stand alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from workbench.core.host import gpus
from workbench.core.methods import known
from workbench.core.model_spec import ModelSpec
from workbench.core.schema import read_as
from workbench.core.spec import RunSpec
from workbench.exhibits import dials

PP, DP = HARMONY = ("harmony-pp", "harmony-dp")
ONE = DP
"""On one device both modes are one; the paper calls it data parallel."""
SWAPPED = PP_SWAP, DP_SWAP = ("pp-swap", "dp-swap")
"""Harmony's modes without packs: figure 10 shows their speed beside, 12 their bytes."""
ZERO = "zero-infinity"
PEERS = ("data-parallel", "torch-gpipe", "torch-1f1b", ZERO)
"""Baselines, as far as there are such methods."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A model, and how it is cut where that is pinned."""

    name: str
    """In figures."""
    model: ModelSpec
    minibatch: int
    micro: int | None = None
    """Samples of both micro-batches; None: the planner chooses."""
    packs: str = ""
    """Units of each backward pack, as in ``2 2 2``; the forward packs are all but the last. Empty:
    the planner chooses."""
    device_memory: int | None = None
    """Cap of its devices in bytes, where that is not the size's cap."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of the spec of its own: learning rate, steps, text."""
    modes: tuple[str, ...] = HARMONY
    """Modes that it is trained in; fewer where time is short."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Packs and micro-batches of a model that figure 8 holds against others."""

    name: str
    trained: Trained
    changes: dict[str, Any]
    """Changes of the spec."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HarmonySize:
    """The dials of one size."""

    name: str
    device: str
    text: Trained
    """GPT: figure 21."""
    pairs: Trained
    """BERT: figure 13."""
    four: tuple[Trained, ...]
    """The models of figure 10."""
    moved: Trained
    """The model of figure 12."""
    minibatches: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Minibatches of figure 10 by model, where there are several."""
    balance: tuple[Setting, ...]
    """Figure 8's."""
    grown: tuple[Trained, ...]
    """The models of figures 17 and 18."""
    ranks: tuple[int, ...]
    """Devices of figures 12, 17 and 18, one among them."""
    most: int
    """Devices of the other figures."""
    steps: int
    curve_steps: int
    """Steps of the runs whose losses are drawn."""
    peers: bool = True
    """Whether baselines run beside; where not, swapping alone does, beside figure 12's model."""
    zero_samples: int = 1
    """Samples that each device of ZeRO-Infinity computes at once in figures 17 and 18; the
    published packs compute one sample at once."""
    device_memory: int | None = None
    given: dict[str, Any] = field(default_factory=dict)
    """Values that somebody chose in place of the size's, by name."""

    def changed(self, **changes: Any) -> HarmonySize:
        """The size with other `layers`, `hidden`, `batch`, `steps` or `seed` of its models; with
        other layers the planner chooses the packs."""
        own = {name: changes[name] for name in ("layers", "hidden") if name in changes}

        def other(trained: Trained) -> Trained:
            return replace(
                trained,
                model=replace(trained.model, **own),
                minibatch=changes.get("batch", trained.minibatch),
                packs="" if "layers" in own else trained.packs,
                changes=trained.changes | {n: changes[n] for n in ("seed",) if n in changes},
            )

        one, many = ("text", "pairs", "moved"), ("four", "grown")
        settings = (replace(each, trained=other(each.trained)) for each in self.balance)
        return replace(
            self,
            given=changes,
            minibatches={} if "batch" in changes else self.minibatches,
            steps=changes.get("steps", self.steps),
            curve_steps=changes.get("steps", self.curve_steps),
            balance=tuple(settings),
            **{name: other(getattr(self, name)) for name in one},
            **{name: tuple(map(other, getattr(self, name))) for name in many},
        )

    @property
    def devices(self) -> int:
        """Devices this machine has for it: processes are not counted."""
        return len(gpus()) if self.device == "cuda" else max(self.ranks)

    def ranks_here(self) -> tuple[int, ...]:
        """Entries of `ranks` that this machine has devices for."""
        return tuple(n for n in self.ranks if n <= self.devices)

    def on_several(self) -> list[tuple[str, int]]:
        """Both modes on each number of devices that this machine has, one device once."""
        ranks = self.ranks_here()
        found = [(ONE, 1)] if 1 in ranks else []
        return found + [(method, n) for method in HARMONY for n in ranks if n > 1]

    def most_here(self) -> int:
        """`most`, or fewer where this machine has fewer devices."""
        return min(self.most, max(1, self.devices))

    def spec(self, method: str, trained: Trained, ranks: int = 1, **changes: Any) -> RunSpec:
        """The run of a model by a method; `minibatch`, `packs` and any field may be changed."""
        batch = changes.pop("minibatch", trained.minibatch)
        packs = changes.pop("packs", trained.packs)
        memory = trained.device_memory or self.device_memory
        values: dict[str, Any] = {
            "method": method,
            "model": trained.model,
            "batch": batch,
            "ranks": ranks,
            # Equal in every exhibit, so that they share the run.
            "steps": self.curve_steps if trained in (self.text, self.pairs) else self.steps,
            "device": self.device,
            "device_memory": memory if method != "plain" else None,
            **trained.changes,
        }
        if method in HARMONY + SWAPPED:
            if trained.micro is not None:
                values |= {"forward_size": trained.micro, "backward_size": trained.micro}
            if packs and method in HARMONY:
                forward = packs.rpartition(" ")[0]
                values |= {"forward_packs": forward or packs, "backward_packs": packs}
        elif trained.micro is not None:
            values["microbatches"] = batch // trained.micro
        return RunSpec.of(**{**values, **changes})

    def known_peers(self) -> tuple[str, ...]:
        """The baselines that run at this size."""
        return tuple(name for name in PEERS if self.peers and name in known())

    def baselines(self, trained: Trained) -> tuple[str, ...]:
        """Baselines that train a model of figure 10 beside Harmony; libraries train decoders
        only."""
        swapped = SWAPPED if self.peers or trained == self.moved else ()
        return swapped + (self.known_peers() if trained.model.family == "gpt" else ())


def _made(told: dict[str, Any]) -> dict[str, Any]:
    """The fields of a size, with models in place of their names."""
    models = {
        name: read_as(Trained, each, f"the model {name}") for name, each in told["models"].items()
    }
    balance = [each | {"trained": models[each["trained"]]} for each in told["balance"]]
    return {name: value for name, value in told.items() if name != "models"} | {
        "balance": balance,
        **{name: models[told[name]] for name in ("text", "pairs", "moved")},
        **{name: [models[each] for each in told[name]] for name in ("four", "grown")},
    }


def named(size: str) -> HarmonySize:
    """A size by name; raises ValueError naming the known ones."""
    return dials.named("harmony", HarmonySize, size, _made)
