"""Harmony figure 13: losses of fine-tuning on pairs, however many devices there are (curves.py)."""

from workbench.exhibits.harmony.curves import Curves
from workbench.model.pairs import MRPC_FILES


class FineTuning(Curves):
    """The losses of BERT."""

    reads, form = "pairs", f"MRPC, with {' or '.join(MRPC_FILES)}"
