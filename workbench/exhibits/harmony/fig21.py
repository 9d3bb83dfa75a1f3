"""Harmony figure 21: losses of training on text, however many devices there are (curves.py)."""

from workbench.exhibits.harmony.curves import Curves
from workbench.model.wikitext import FORMS


class Training(Curves):
    """The losses of GPT-2."""

    figure, section = "harmony_21", "VLDB'22, figure 21: GPT2-Medium on WikiText-103"
    title = "Losses of training"
    claim = (
        "Harmony trains GPT-2 as one device does: the loss curves of one device, data parallel "
        "and pipeline coincide."
    )
    reads, form = "text", f"WikiText, with {' or '.join(f'wiki.train.{form}' for form in FORMS)}"


EXHIBIT = Training()
