"""Harmony figure 21: losses of training on text, however many devices there are (curves.py)."""

from workbench.exhibits.harmony.curves import Curves
from workbench.model.wikitext import FORMS


class LanguageModelling(Curves):
    """The losses of GPT-2."""

    reads, form = "text", f"WikiText, with {' or '.join(f'wiki.train.{form}' for form in FORMS)}"
