"""Harmony figure 13: losses of fine-tuning on pairs, however many devices there are (curves.py)."""

from workbench.figures.harmony import curves

FIGURE, SECTION = "harmony_13", "VLDB'22, figure 13: BERT-Large on MRPC"
TITLE = "Losses of fine-tuning"
CLAIM = (
    "Harmony fine-tunes BERT as one device does: the loss curves of one device, data parallel and "
    "pipeline coincide."
)
PLANS = ()
"""It shows no plans."""

specs, rows, absent = curves.exhibit(lambda size: size.pairs)
known, draw, verdicts = curves.known, curves.draw, curves.verdicts
