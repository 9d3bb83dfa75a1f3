"""Settings that mean nothing where layers visit several ranks, refused rather than ignored."""

from __future__ import annotations

from workbench.core.spec import RunSpec

MEANINGLESS = {
    "microbatches": (1, "both passes divide the batch by forward_size and backward_size"),
    "activations": ("recompute", "the input of each pack is kept and the rest computed again"),
    "kept": ("auto", "the input of each pack is kept and the rest computed again"),
    "optimizer_tier": ("host", "states live on the host, or on a device where a layer stays"),
    "disk_layers": ("auto", "no states are on the disk"),
    "pulled": ("auto", "states that live on the host are updated there"),
    "host_workers": (1, "every rank has one host update at a time"),
    "window": ("auto", "packs take the place of a window"),
    "resident": ("auto", "the plan decides which layers stay on a device"),
    "link_bytes_per_s": (None, "the link to the host is the machine's own"),
    "disk_memory": (None, "nothing is on the disk"),
}
"""Field -> what it may be beside 'auto', and why it is nothing else."""


def check_settings(spec: RunSpec) -> None:
    """Raise ValueError for a setting that the spec's method would ignore."""
    for name, (only, why) in MEANINGLESS.items():
        value = getattr(spec, name)
        if value not in (only, "auto"):
            word = "none" if only is None else repr(only)
            raise ValueError(f"{name} is {value!r}; with {spec.method} {why}, leave it at {word}")
