"""Harmony figure 21: losses of training on text, however many devices there are (curves.py)."""

from workbench.figures.harmony import curves

FIGURE, SECTION = "harmony_21", "VLDB'22, figure 21: GPT2-Medium on WikiText-103"
TITLE = "Losses of training"
CLAIM = (
    "Harmony trains GPT-2 as one device does: the loss curves of one device, data parallel and "
    "pipeline coincide."
)
PLANS = ()
"""It shows no plans."""

specs, rows, absent = curves.exhibit(lambda size: size.text)
known, draw, verdicts = curves.known, curves.draw, curves.verdicts
