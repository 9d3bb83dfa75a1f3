"""A page of sweeps without its widgets: what is shown, what people may do, and why not.

It keeps nothing: sweeps live in the results folder and run in processes of their own, so a page
that is opened again, or a second one, finds them as they are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.core.paths import user_path
from workbench.core.spec import RunSpec, flat
from workbench.runs.campaign import Campaign
from workbench.runs.confines import INSIDE, confine, inside
from workbench.runs.overrides import USUAL
from workbench.runs.store import Store
from workbench.ui.form import MOST_RUNS, Form
from workbench.ui.helper_process import HelperProcess
from workbench.ui.runs.commands import sweep_commands
from workbench.ui.sweeps.preview import Preview
from workbench.ui.watch import SweepWatch, Watch

ACTIONS = ("start", "pause", "go_on", "cancel", "retry")
TYPING_S = 0.6
"""Silence after which what was typed is previewed."""
CAN_GO_ON = ("paused", "cancelled", "interrupted", "failed")


class SweepControl:
    """The form, its preview, and the sweep that is shown. `look` about twice a second."""

    def __init__(
        self, store: Store, *, helper: HelperProcess | None = None, confined: bool = False
    ) -> None:
        """`confined`: whether this is a page that others than its owner may use (confines.py)."""
        self.store, self.confined = store, confined
        self.form = Form()
        self.watch = Watch(store, helper)
        self.preview = Preview(store, self.watch.helper)
        self.detached = False
        """Whether what is started goes on without this kernel."""
        self.message = ""
        """Why the last thing that was asked for was not done, in one sentence."""
        self._starting: threading.Thread | None = None
        self._changed_at: float | None = None
        self._bad: str | None = None

    # -- what is shown --------------------------------------------------------------------------

    @property
    def shown(self) -> SweepWatch | None:
        """The sweep that is shown; None while a new one is made."""
        return self.watch.sweeps.get(self.watch.followed)

    @property
    def starting(self) -> bool:
        """Whether a sweep's process has been asked for and has not answered yet."""
        return self._starting is not None and self._starting.is_alive()

    def look(self) -> bool:
        """Look once, and work on the preview; returns whether anything changed."""
        was_starting = self._starting is not None
        if was_starting and not self.starting:
            self._starting = None
        ran = {name for name, sweep in self.watch.sweeps.items() if sweep.live}
        changed = bool(self.watch.look()) or (was_starting and self._starting is None)
        if any(name in self.watch.sweeps and not self.watch.sweeps[name].live for name in ran):
            self.changed()  # runs that were to be made are there now
        if self._changed_at is not None and time.monotonic() >= self._changed_at + TYPING_S:
            self._changed_at = None
            self._preview()
            changed = True
        return self.preview.advance() or changed

    def open(self) -> None:
        """Look for the first time, and show the sweep that somebody who opens a page wants."""
        self.watch.look()
        if wanted := self.watch.wanted():
            self.show(wanted)

    def show(self, name: str) -> None:
        """Show a sweep of the store and fill the form with it. Raises ValueError for one that is
        malformed, which is shown all the same, or that is not there."""
        if name not in self.watch.sweeps:
            self.watch.look()
        if name not in self.watch.sweeps:
            raise ValueError(f"there is no sweep named {name!r}")
        self._allow(self.watch.sweeps[name].campaign)
        self.watch.follow(name)
        self.watch.look()
        self.preview.start_over()
        self._changed_at = None
        self._bad = None
        self.form.clear()
        self.form.load(self.watch.sweeps[name].campaign)

    def new(self) -> None:
        """An empty form, and no sweep shown."""
        self.watch.follow("")
        self.form.clear()
        self.changed()

    def take(self, spec: RunSpec) -> None:
        """A new sweep of this one run: what of it is not the default stands in the form."""
        usual = flat(RunSpec(method=spec.method, **USUAL))
        values = {name: value for name, value in flat(spec).items() if value != usual[name]}
        self.new()
        self.form.set(method=spec.method, **values)

    def load(self, path: str | Path) -> None:
        """Fill the form from a sweep file, relative to here; on a confined page else to the results
        folder. Raises ValueError, and leaves the form as it was."""
        path = user_path(written := path)
        if self.confined and not inside(path, self.store.root):
            path = self.store.root / path
            if not inside(path, self.store.root):
                raise ValueError(f"the sweep file is {str(written)!r}; {INSIDE}")
        self.form.load(path)
        self.watch.follow("")
        self.changed()

    def changed(self) -> None:
        """The form was changed: preview it, once nobody types any more."""
        self.preview.stop()
        self._changed_at, self._bad = time.monotonic(), None

    # -- what people do -------------------------------------------------------------------------

    def start(self, *, wait: bool = True) -> Campaign:
        """Write the sweep of the form down and start it; what has a record is not run again.

        Without `wait` its process is started beside this one. Raises ValueError for a bad field or
        a name that another sweep has, and StoreError.
        """
        data = {"name": self.free_name(), **self._data()}
        try:
            campaign = Campaign.create(self.store, data)
        except ValueError as error:
            if "another sweep" not in str(error):
                raise
            raise ValueError(f"{error}, such as {self.free_name(data['name'])}") from None
        self._begin(lambda: campaign.start(detached=self.detached), wait)
        self.show(campaign.name)
        return campaign

    def go_on(self, *, wait: bool = True) -> None:
        """Run what is left of the sweep that is shown. Raises as `start` does."""
        campaign = self._campaign()
        self._begin(lambda: campaign.start(detached=self.detached), wait)

    def retry(self, *, wait: bool = True) -> None:
        """Run what failed once more, and whatever else is left. Raises as `start` does."""
        campaign = self._campaign()
        self._begin(lambda: campaign.retry(detached=self.detached), wait)

    def pause(self) -> None:
        """Start nothing more; what runs is let finish. Raises ValueError where nothing is shown,
        and StoreError."""
        self._campaign().pause()

    def cancel(self) -> None:
        """End what runs and start nothing more. Raises as `pause` does."""
        self._campaign().cancel()

    def do(self, action: str, **options: Any) -> bool:
        """One of `ACTIONS` for a button: what it raises becomes `message`."""
        return self.attempt(lambda: getattr(self, action)(**options))

    def attempt(self, call: Callable[[], object]) -> bool:
        """Call; a refusal becomes `message`, one sentence. Returns whether there was none."""
        self.message = ""
        try:
            call()
        except (ValueError, OSError) as error:
            self.message = " ".join(str(error).split())
        return not self.message

    def why_not(self) -> dict[str, str]:
        """Action -> why it means nothing now; empty for what may be done."""
        sweep = self.shown
        if self.starting:
            return dict.fromkeys(ACTIONS, "the sweep is being started")
        none = dict.fromkeys(ACTIONS, "no sweep is shown; start one, or choose one above")
        if sweep is None:
            return none | {"start": self._form_problem() or self.preview.why_not}
        state, reasons = sweep.status.state, dict.fromkeys(ACTIONS, "")
        counts = sweep.counts()
        reasons["start"] = self._form_problem() or self.preview.why_not
        if not reasons["start"] and self.form.untouched:
            if sweep.live:
                reasons["start"] = "it runs already; change a field to make another sweep"
            elif state in CAN_GO_ON:
                reasons["start"] = "it has been started before; press Resume"
            elif state == "done" and not counts.get("pending") and not sweep.outdated:
                reasons["start"] = "all its runs have ended; change a field to make another sweep"
        if state not in CAN_GO_ON:
            reasons["go_on"] = f"there is nothing to resume; the sweep is {state}"
        if not sweep.live or state == "paused":
            reasons["pause"] = f"nothing is to be paused; the sweep is {state}"
        if not sweep.live:
            reasons["cancel"] = f"nothing is to be cancelled; the sweep is {state}"
        if not counts.get("failed"):
            reasons["retry"] = "no run has failed"
        return reasons

    def free_name(self, base: str = "sweep") -> str:
        """A name that no sweep has."""
        names, number = {campaign.name for campaign in Campaign.all(self.store)}, 2
        if base not in names:
            return base
        while f"{base[:60]}-{number}" in names:
            number += 1
        return f"{base[:60]}-{number}"

    def commands(self) -> list[str]:
        """Commands that repeat the sweep that is shown: papermill and the command line; none where
        none is shown, or where its file cannot be used."""
        sweep = self.shown
        return sweep_commands(sweep.campaign) if sweep is not None and not sweep.problem else []

    def close(self) -> None:
        """End the helper process. Sweeps go on."""
        self.preview.stop()
        self.watch.close()

    def _form_problem(self) -> str:
        """Why the form is no sweep yet."""
        if self._bad is None:
            self._bad = ""
            try:
                self.form.data()
            except ValueError as error:
                self._bad = str(error)
        return self._bad

    def _preview(self) -> None:
        try:
            self.preview.start(self._data())
        except ValueError as error:
            told = self.form.errors or not self.form.text("method")  # beside the field
            self.preview.start_over("" if told else str(error))

    def _begin(self, call: Callable[[], object], wait: bool) -> None:
        if wait:
            call()
            self.watch.look()
            return
        if not self.starting:  # a double click is one
            self._starting = threading.Thread(target=self.attempt, args=(call,), daemon=True)
            self._starting.start()

    def _campaign(self) -> Campaign:
        if self.shown is None:
            raise ValueError("no sweep is shown; start one, or show one by its name")
        return self.shown.campaign

    def _data(self) -> dict[str, Any]:
        """The sweep of the form: the only way from what was typed to a spec."""
        if (count := self.form.count()) > MOST_RUNS:
            raise ValueError(f"the sweep has {count:,} runs; at most {MOST_RUNS:,} are allowed")
        data = self.form.data()
        if self.confined:
            confine(data, self.store.root)
        return data

    def _allow(self, campaign: Campaign) -> None:
        """Raise ValueError for a sweep that lies here and that this page may make nothing of."""
        try:
            data = campaign.data
        except ValueError:  # it is shown all the same, and nothing can be made of it
            return
        if self.confined:
            confine(data, self.store.root)
