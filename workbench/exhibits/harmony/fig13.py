"""Harmony figure 13: losses of fine-tuning on pairs, however many devices there are (curves.py)."""

from workbench.exhibits.harmony.curves import Curves
from workbench.model.pairs import MRPC_FILES


class FineTuning(Curves):
    """The losses of BERT."""

    figure, section = "harmony_13", "VLDB'22, figure 13: BERT-Large on MRPC"
    title = "Losses of fine-tuning"
    claim = (
        "Harmony fine-tunes BERT as one device does: the loss curves of one device, data parallel"
        " and pipeline coincide."
    )
    reads, form = "pairs", f"MRPC, with {' or '.join(MRPC_FILES)}"


EXHIBIT = FineTuning()
