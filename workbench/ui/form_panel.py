"""The form of a sweep as widgets: one text for each field, which takes a value, a list or a range.

The widgets hold nothing of their own: what is typed goes into the form, and `fill` shows the form.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from itertools import groupby

import ipywidgets as widgets

from workbench.core import methods
from workbench.runs.axis import RULE, parse_axis
from workbench.runs.columns import label
from workbench.ui import html
from workbench.ui.folds_panel import Folds
from workbench.ui.form import OF_METHODS, Form, FormField, form_fields

COLUMNS = "repeat(auto-fill, minmax(250px, 1fr))"
LABEL = "8.5em"
MARK = "wb-refused"
NONE = '<div class="wb soft">No chosen method has any.</div>'
STYLE = (
    f"<style>.{MARK} input {{border: 2px solid var(--jp-error-color1, #b00) !important}}"
    ".wb-grid .widget-text, .wb-grid .widget-combobox {width: 96%}</style>"
)


class FormPanel:
    """`widget` edits the form; `changed` is called after each change by hand."""

    def __init__(self, form: Form, changed: Callable[[], None]) -> None:
        self.form, self._changed = form, changed
        self.fields: dict[str, widgets.DOMWidget] = {}
        """By field."""
        for field in form_fields().values():
            made = _methods(field) if field.name == "method" else _text(field)
            made.observe(lambda _, name=field.name: self._take(name), "value")
            self.fields[field.name] = made
        self.told = widgets.HTML(html.live(""))
        self.kept, self._none = widgets.HTML(), widgets.HTML(NONE)
        self._filling = False
        grids = {
            name: _grid([self.fields[field.name] for field in group if field.name != "method"])
            for name, group in groupby(form_fields().values(), key=lambda field: field.group)
        }
        self._options, basic = grids[OF_METHODS], grids.pop("Basic")
        self.more = Folds([*grids.values()], titles=[*grids])
        rule = widgets.HTML(f'{STYLE}<div class="wb soft">{escape(RULE)}</div>')
        self.widget = widgets.VBox(
            [self.fields["method"], rule, basic, self.told, self.kept, self.more]
        )
        self.fill()

    def fill(self) -> None:
        """Show what stands in the form."""
        self._filling = True
        try:
            for name, made in self.fields.items():
                text = self.form.text(name)
                if name != "method":
                    made.value = text
                    continue
                chosen = []
                if text and name not in self.form.errors:
                    chosen = parse_axis(name, text)
                made.value = tuple(chosen)
        finally:
            self._filling = False
        self._tell()

    def _take(self, name: str) -> None:
        if self._filling:
            return
        value = self.fields[name].value
        self.form.type(name, value if isinstance(value, str) else ", ".join(value))
        self._tell()
        self._changed()

    def _tell(self) -> None:
        """Mark what is wrong, and say it in words."""
        for name, made in self.fields.items():
            wrong = name in self.form.errors
            if wrong != (MARK in made._dom_classes):
                (made.add_class if wrong else made.remove_class)(MARK)
        options = [field for field in form_fields().values() if field.group == OF_METHODS]
        shown = [self.fields[field.name] for field in options if self.form.shows(field)]
        self._options.children = shown or [self._none]
        self.told.value = html.live("; ".join(self.form.errors.values()), "bad")
        self.kept.value = html.paragraph(self.form.kept, "soft")


def _methods(field: FormField) -> widgets.SelectMultiple:
    known = methods.known()
    return widgets.SelectMultiple(
        options=[(f"{m.label}: {m.summary}", m.name) for m in known.values()],
        rows=len(known),
        description="method",
        tooltip="Which methods are compared; several with Ctrl or Shift.",
        style={"description_width": LABEL},
        layout={"width": "98%", "max_width": "75em"},
    )


def _text(field: FormField) -> widgets.Text:
    common = {
        "description": label(field.name),
        "placeholder": field.default,
        "tooltip": f"{field.name}: {field.help} {'' if field.group == 'Sweep' else RULE}".strip(),
        "continuous_update": False,
        "style": {"description_width": LABEL},
    }
    if field.choices:
        return widgets.Combobox(options=list(field.choices), ensure_option=False, **common)
    return widgets.Text(**common)


def _grid(fields: list[widgets.DOMWidget]) -> widgets.GridBox:
    made = widgets.GridBox(fields, layout={"grid_template_columns": COLUMNS, "width": "100%"})
    made.add_class("wb-grid")
    return made
