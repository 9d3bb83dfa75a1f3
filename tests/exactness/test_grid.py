"""Whatever trains on several ranks trains as torch's own loop does: the contract of the house."""

from __future__ import annotations

import pytest

from tests.exactness.systems import CELLS, SYSTEMS
from tests.exactness.trained import NEAR, assert_equals


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: "-".join(map(str, vars(cell).values())))
def test_every_system_trains_as_torch_does(cell, tmp_path):
    """Ranks move the bytes that their schedule says, too."""
    system = SYSTEMS[cell.system]
    near = (NEAR | system.near)[cell.precision]
    assert_equals(system.trains(cell, tmp_path), system.plain(cell), near)
