"""Base of Varuna's exhibits. The values of its paper were not available to this project: facts of
its released code, and of its simulator, take their place."""

from __future__ import annotations

from workbench.exhibits.base import Exhibit
from workbench.exhibits.harmony import sizes
from workbench.exhibits.opened import Opened


class VarunaExhibit(Exhibit):
    """An exhibit with the columns that it lists and the claims that it judges."""

    dials = staticmethod(sizes.named)

    def unmeasured(self, at: Opened) -> str:
        """Why no run is shown."""
        return self.about if at.simulated else "not run yet"
