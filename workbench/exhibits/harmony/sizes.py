"""Runs of each size of Harmony's exhibits, as named functions.

* ``smoke``: processes that talk by gloo on a processor, a few seconds a run. Packs are pinned, so
  that bytes can be held against a formula; exhibits share their runs.
* ``small``: the GPUs there are, minutes.
* ``paper``: the published models and minibatches on cards capped at the published 11 GiB. Where
  there are no GPUs nothing runs, and plans on the published profiles stand alone.

Tests have a fourth, ``tiny``, of seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from workbench.core.bytesize import parse_bytes
from workbench.core.host import gpus
from workbench.core.methods import known
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.exhibits.stronghold.sizes import SIZES
from workbench.published.harmony import FOUR, MODELS

PP, DP = HARMONY = ("harmony-pp", "harmony-dp")
ONE = DP
"""On one device both modes are one; the paper calls it data parallel."""
SWAPPED = PP_SWAP, DP_SWAP = ("pp-swap", "dp-swap")
"""Harmony's modes without packs: figure 10 shows their speed beside, 12 their bytes."""
ZERO = "zero-infinity"
PEERS = ("data-parallel", "torch-gpipe", "torch-1f1b", ZERO)
"""Baselines, as far as there are such methods."""
CURVE_STEPS = 100
"""Steps of the published models whose losses are drawn; a tenth of BERT's warm up, as in the
paper."""


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


def _gpt(layers: int, hidden: int, heads: int, seq: int, vocab: int) -> ModelSpec:
    return ModelSpec(
        layers=layers, hidden=hidden, heads=heads, seq=seq, vocab=vocab, tied=False
    )  # untied, as the authors' GPT-2 is


def _settings(trained: Trained, *given: tuple[int, int, int]) -> tuple[Setting, ...]:
    """Settings by forward and backward micro-batch and layers of a pack."""
    return tuple(
        Setting(
            name=f"{forward}/{backward}, packs of {layers}",
            trained=trained,
            changes={
                "forward_size": forward,
                "backward_size": backward,
                "packs": _packs(trained.model.units, layers),
            },
        )
        for forward, backward, layers in given
    )


def _packs(units: int, size: int) -> str:
    """Packs of one size, the rest in the first one, as the authors cut by hand."""
    whole, rest = divmod(units, size)
    return " ".join(map(str, [rest] * (rest > 0) + [size] * whole))


def _of(family: str, layers: int, hidden: int, seq: int, vocab: int, heads: int = 1) -> ModelSpec:
    return ModelSpec(
        family=family, layers=layers, hidden=hidden, heads=heads, seq=seq, vocab=vocab, tied=False
    )


def smoke() -> HarmonySize:
    """Models of at most 1.3 million parameters on up to two processes."""
    roomy = Trained(name="GPT", model=_gpt(6, 128, 4, 64, 256), minibatch=8, micro=2,
                    packs="2 2 2 2")  # fmt: skip
    # Packs of two layers fit; without packs two devices have to swap.
    text = replace(roomy, device_memory=parse_bytes("7.1MiB"))
    pairs = Trained(name="BERT", model=_of("bert", 4, 64, 64, 300, 4), minibatch=8, micro=2,
                    packs="2 2 2 1", changes={"lr": 1e-3})  # fmt: skip
    cut = {"minibatch": 8, "micro": 2, "modes": (PP,)}
    vgg = Trained(name="VGG", model=_of("vgg", 7, 4, 32, 10), packs="3 3 2 2", **cut)
    resnet = Trained(name="ResNet", model=_of("resnet", 6, 8, 32, 10), packs="2 2 2 2", **cut)
    return HarmonySize(
        name="smoke",
        device="cpu",
        text=text,
        pairs=pairs,
        four=(pairs, text, vgg, resnet),
        moved=text,
        balance=_settings(roomy, (2, 2, 4), (2, 2, 2)),
        grown=(text,),
        ranks=(1, 2),
        most=2,
        steps=6,
        curve_steps=12,
        peers=False,
    )


def small() -> HarmonySize:
    """Minutes on the GPUs there are, capped at 4 GiB; the planner chooses packs."""
    text = Trained(name="GPT", model=_gpt(24, 1024, 16, 512, 50304), minibatch=32)
    pairs = Trained(name="BERT", model=_of("bert", 24, 1024, 128, 30522, 16), minibatch=32)
    vgg = Trained(name="VGG", model=_of("vgg", 93, 32, 96, 100), minibatch=32)
    resnet = Trained(name="ResNet", model=_of("resnet", 128, 32, 96, 100), minibatch=32)
    return HarmonySize(
        name="small",
        device="cuda",
        text=text,
        pairs=pairs,
        four=(pairs, text, vgg, resnet),
        moved=text,
        balance=_settings(text, (4, 4, 7), (4, 4, 2)),
        grown=(text,),
        ranks=(1, 2, 4, 8),
        most=4,
        zero_samples=2,
        steps=6,
        curve_steps=20,
        device_memory=parse_bytes("4GiB"),
    )


def paper() -> HarmonySize:
    """The published models, minibatches and numbers of cards, in fp32."""
    xl = Trained(name="gpt2_xl", model=_gpt(48, 1600, 25, 1024, 50257), minibatch=64)
    bert = Trained(name="bert_96_seq512", model=_of("bert", 96, 1024, 512, 30522, 16), minibatch=64)
    vgg = Trained(name="vgg416", model=_of("vgg", 413, 64, 224, 1000), minibatch=64)
    resnet = Trained(name="resnet1026", model=_of("resnet", 512, 64, 224, 1000), minibatch=256)
    medium = Trained(
        name="GPT2-Medium", model=_gpt(24, 1024, 16, 1024, 50257), minibatch=256, micro=2,
        packs="5 7 7 7", changes={"lr": 5e-5, "lr_schedule": "linear", "min_lr": 0.0, "seed": 42},
    )  # fmt: skip
    large = Trained(
        name="BERT-Large", model=_of("bert", 24, 1024, 128, 30522, 16), minibatch=32, micro=8,
        packs="3 4 4 4 4 4 4",
        changes={"lr": 2e-5, "lr_schedule": "linear", "min_lr": 0.0, "seed": 3,
                 "warmup_steps": CURVE_STEPS // 10},
    )  # fmt: skip
    long = Trained(name="BERT-Large", model=_of("bert", 24, 1024, 512, 30522, 16), minibatch=600)
    grown = tuple(
        Trained(
            name=f"gpt2_{billions}b", model=_gpt(5 * billions, 4096, 32, 1024, 50257), minibatch=32
        )
        for billions in (10, 20, 30, 40)
    )
    return HarmonySize(
        name="paper",
        device="cuda",
        text=medium,
        pairs=large,
        four=(bert, xl, vgg, resnet),
        moved=xl,
        minibatches={name: MODELS[name].minibatches for name in FOUR},
        balance=_settings(long, (30, 15, 4), (20, 10, 7), (10, 5, 14), (50, 25, 2)),
        grown=grown,
        ranks=(1, 2, 4, 8),
        most=4,
        steps=4,
        curve_steps=CURVE_STEPS,
        device_memory=parse_bytes("11GiB"),
    )


def tiny() -> HarmonySize:
    """Size of tests: two layers of 32 on two processes."""
    text = Trained(name="GPT", model=_gpt(2, 32, 2, 16, 256), minibatch=4, micro=2, packs="2 2")
    pairs = Trained(name="BERT", model=_of("bert", 2, 32, 32, 300, 2), minibatch=4, micro=2,
                    packs="2 2 1")  # fmt: skip
    return HarmonySize(
        name="tiny",
        device="cpu",
        text=text,
        pairs=pairs,
        four=(pairs, text),
        moved=text,
        balance=_settings(text, (2, 2, 2), (2, 2, 1)),
        grown=(text,),
        ranks=(1, 2),
        most=2,
        steps=3,
        curve_steps=3,
        peers=False,
    )


def named(size: str) -> HarmonySize:
    """A size by name; raises ValueError naming the known ones."""
    known_sizes = {"smoke": smoke, "small": small, "paper": paper, "tiny": tiny}
    if size not in known_sizes:
        raise ValueError(f"unknown size {size!r}; known: {', '.join(SIZES)}")
    return known_sizes[size]()
