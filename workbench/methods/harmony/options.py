"""Options of Harmony: its four packing decisions, and who makes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workbench.methods.options import Clipping, Visits, numbers_of_units

NO_PACKS = "none"
"""Word of a user for no forward packs."""


@dataclass(frozen=True, kw_only=True)
class Options(Visits, Clipping):
    """Packs are pinned together with both sizes."""

    forward_packs: str = "auto"
    """Units of each forward pack, from the first one, as in ``4 4 3``; the last backward
    pack's are in none. Empty, also written ``none``, where that is the whole model."""
    backward_packs: str = "auto"
    """Units of each backward pack, the embedding and the head among them, as in ``4 4 3``."""
    packing: Literal["ours", "faithful"] = "ours"
    """Source of packs and sizes that are ``auto``: our search, within memory, or the rules and the
    estimate that Harmony's authors published."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("forward_packs", "backward_packs"):
            text = getattr(self, name)
            if name == "forward_packs" and text.split() in ([], [NO_PACKS]):
                object.__setattr__(self, name, "")
            else:
                numbers_of_units(name, text, "4 4 3")
        if not self.forward_packs and len(self.backward_packs.split()) > 1:
            raise ValueError(
                f"forward_packs is {NO_PACKS!r}, backward_packs {self.backward_packs!r}; only "
                "where one backward pack is the whole model there are no forward packs"
            )
