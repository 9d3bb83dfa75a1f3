"""The planner's panel: sliders on one side, the answer on the other.

    panel = PlannerPanel(store)
    panel.widget                                            # the page
    panel.ask(layers=100, device_memory="24GiB")            # asks from code, too
    panel.reply                                             # what was answered so far
    panel.spec                                              # what `Use this` handed over

The kernel only hands questions over and shows replies (control.py).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import ipywidgets as widgets

from workbench.core import methods
from workbench.core.spec import RunSpec
from workbench.published import machines
from workbench.runs.columns import label
from workbench.runs.store import Store
from workbench.ui import html
from workbench.ui.folds_panel import Folds
from workbench.ui.frame_panel import button, dropdown, framed
from workbench.ui.planner import html as planner_html
from workbench.ui.planner import words as planner_words
from workbench.ui.planner.control import ANY, PlannerControl, Question, Reply
from workbench.ui.planner.dial import GIB, Dial, link, memory, whole
from workbench.ui.ticker import Ticker
from workbench.ui.timeline.timeline import Timeline

LOOK_S = 0.005
"""Seconds between two looks for a reply, while one is to come."""
HERE = "this machine"
SHAPE = {
    "hidden": ("Width of the residual stream", 8192),
    "heads": ("Attention heads; they must divide the hidden size", 128),
    "seq": ("Tokens per sample", 8192),
    "vocab": ("Rows of the token embedding", 262144),
    "microbatches": ("Equal parts the batch is computed in", 64),
}
"""Field of a spec -> help, and the end of its slider."""
ROOM = 2.0
"""How far beyond what the machine has the sliders of memory reach."""


class PlannerPanel:
    """The planner's widgets; `planner` does their work without them."""

    def __init__(self, store: Store, *, on_use: Callable[[RunSpec], None] | None = None) -> None:
        """`on_use` is called with a run spec when the user presses `Use this`."""
        self.planner = PlannerControl(store)
        self.question = Question.of()
        """The last valid question."""
        self.spec: RunSpec | None = None
        """The run spec that was handed over last."""
        self._on_use, self._filling = on_use, False
        self._own = (0.0, 0.0, 0.0)
        """Device and host memory and link of the machine that the sliders know."""
        self._ticker = Ticker(LOOK_S, self.tick, self._failed)
        self._make()
        self._fill()
        self._ask()

    # -- from code ------------------------------------------------------------------------------

    @property
    def reply(self) -> Reply | None:
        """The last reply to the question; None before the first."""
        found = self.planner.reply
        return found if found is not None and found.question == self.question else None

    def ask(self, question: Question | None = None, **changes: Any) -> None:
        """Ask `question`, or the last one changed, and show it. Raises ValueError."""
        base = self.question if question is None else question
        self.question = base.with_(**changes) if changes else base
        self._fill()
        self._ask()

    def tick(self) -> bool:
        """Show a reply that has come back; returns whether more is to come."""
        reply = self.planner.poll()
        if reply is not None:
            self._show(reply)
        return self.planner.busy

    def close(self) -> None:
        """Stop polling, and end the helper process."""
        self._ticker.stop()
        self.planner.close()

    # -- questions ------------------------------------------------------------------------------

    def _make(self) -> None:
        wide = {"layout": {"width": "98%"}, "style": {"description_width": "8.5em"}}
        names = [("any: the fastest that fits", ANY)]
        names += [(f"{m.label}: {m.summary}", m.name) for m in methods.known().values()]
        about = "Of weights, activations and gradients; optimizer states are fp32"
        known = [HERE, *machines.names(self.planner.store.root)]
        asked, costs = "Which method is asked about", "Whose memory and costs answer"
        self.method = dropdown("method", asked, names, self._changed, **wide)
        self.machine = dropdown("machine", costs, known, self._changed, **wide)
        self.dtype = dropdown("dtype", about, ["fp32", "bf16"], self._changed, **wide)
        spec = self.question.spec
        dials = {
            "layers": ("layers", "Transformer blocks", whole(1, 200, most=1000)),
            "batch": ("batch", "Samples per optimizer step", whole(1, 256, doubling=True)),
            "ranks": ("devices", "GPUs of one host that train together", whole(1, 8, most=64)),
            "device_memory": (
                "device memory", "Budget of the device: GiB, 24GiB, 25GB, or all",
                memory(64, nothing="all"),
            ),
            "host_memory": (
                "host memory", "Budget of the host: GiB, 90GiB, 96GB, or all",
                memory(256, nothing="all"),
            ),
            "disk_memory": (
                "disk", "Room for optimizer states on the disk: GiB, or none",
                memory(1024, nothing="none"),
            ),
            "link_bytes_per_s": (
                "link speed", "Between host and device, each way: GB/s, or its own", link(0.0)
            ),
        }  # fmt: skip
        for name, (words, high) in SHAPE.items():
            most = 1024 if name == "microbatches" else inf
            dials[name] = (label(name), words, whole(1, high, doubling=True, most=most))
        self.dials = {
            name: Dial(title, words, scale, self._value(spec, name), self._changed)
            for name, (title, words, scale) in dials.items()
        }
        first = [self.dials[name] for name in dials if name not in SHAPE]
        self.shape = Folds(
            [widgets.VBox([self.dtype, *(self.dials[name] for name in SHAPE)])],
            titles=["Shape of the model and micro-batches"],
        )
        self.refused = widgets.HTML(html.live(""))
        self.answer, self.details = widgets.HTML(), widgets.HTML()
        self.bars, self.table = widgets.HTML(), widgets.HTML()
        self.command, self.used = widgets.HTML(), widgets.HTML(html.live(""))
        self.use = button(
            "Use this",
            "Hand this question over as the spec of a run, with the method of the answer",
            self._use,
        )
        self.use.disabled = True
        self.timeline_box = widgets.VBox()
        for made in (self.details, self.table, self.command):
            made.add_class("wb-planner")
        asked = [self.method, self.machine, *first, self.refused, self.shape]
        answered = [self.answer, self.details, self.bars]
        self.widget = framed(
            [
                widgets.HTML(
                    f"{html.STYLE}{planner_html.STYLE}<div class='wb'><h2>Plan</h2></div>"
                ),
                widgets.HBox(
                    [
                        widgets.VBox(asked, layout={"flex": "1 1 330px", "max_width": "430px"}),
                        widgets.VBox(answered, layout={"flex": "2 1 400px", "min_width": "0"}),
                    ],
                    layout={"flex_flow": "row wrap", "grid_gap": "0 1.5em", "width": "99%"},
                ),
                self.table, self.timeline_box, self.command, self.use, self.used,
            ]
        )  # fmt: skip

    def _fill(self) -> None:
        """Show the question."""
        self._filling = True
        try:
            question, spec = self.question, self.question.spec
            self.method.value, self.dtype.value = question.method, spec.dtype
            self.machine.value = question.machine or HERE
            for name, dial in self.dials.items():
                dial.put(self._value(spec, name))
        finally:
            self._filling = False

    def _changed(self) -> None:
        """Ask the question that the widgets show, or say why it is not valid."""
        if self._filling:
            return
        wrong = [dial.error for dial in self.dials.values() if dial.error]
        try:
            if wrong:
                raise ValueError("; ".join(wrong))
            self.question = self.question.with_(
                method=self.method.value,
                machine=None if self.machine.value == HERE else self.machine.value,
                dtype=self.dtype.value,
                **{name: dial.value for name, dial in self.dials.items()},
            )
        except ValueError as error:
            self.refused.value = html.live(f"{error}. The answer is to the question before.", "bad")
            return
        self._ask()

    def _ask(self) -> None:
        self.refused.value = html.live("")
        self.planner.ask(self.question)
        self._ticker.start()

    @staticmethod
    def _value(spec: RunSpec, name: str) -> Any:
        return getattr(spec if hasattr(spec, name) else spec.model, name)

    # -- answers --------------------------------------------------------------------------------

    def _show(self, reply: Reply) -> None:
        row, layers = reply.row, reply.question.spec.model.layers
        bad = bool(reply.problem) or (row is not None and not row.fits)
        words = planner_words.headline(reply), planner_words.state(reply)
        _put(self.answer, planner_html.answer(*words, bad=bad))
        sentences = [planner_words.helps(reply)]
        if row is not None:
            sentences += [planner_words.bound(row), planner_words.settings(row, layers)]
        sentences += [planner_words.largest(reply), planner_words.costs(reply)]
        _put(self.details, planner_html.details(*sentences))
        _put(self.bars, planner_html.bars(reply))
        rows = [] if reply.problem else planner_words.table(reply)
        _put(self.table, html.table(rows, "Which method"))
        _put(self.command, self._commands(reply))
        self.use.disabled = row is None or not row.fits
        self._show_timeline(reply)
        self._fit_sliders(reply)

    def _commands(self, reply: Reply) -> str:
        command = reply.question.command(self.planner.store.root)
        return html.paragraph("The same question on the command line:", "soft") + html.log(
            command, "command line that asks the same"
        )

    def _show_timeline(self, reply: Reply) -> None:
        """The predicted steps of a finished answer; none while the question is being turned."""
        if reply.timeline is None:
            self.timeline_box.layout.display = "none"
            return
        if self.timeline_box.children:
            self.timeline_box.children[0].data = reply.timeline
        else:
            self.timeline_box.children = [Timeline(data=reply.timeline)]
        self.timeline_box.layout.display = None

    def _fit_sliders(self, reply: Reply) -> None:
        """Let the sliders reach what the machine has, and a bit more."""
        if not reply.capacity:
            return
        device, host = reply.capacity["device"], reply.capacity["host"]
        own = (device, host, reply.own_link_bytes_per_s)
        if own == self._own:
            return
        self._own = own
        for name, has in (("device_memory", device), ("host_memory", host)):
            scale = memory(max(1.0, round(ROOM * has / GIB)), nothing="all")
            self.dials[name].rescale(scale, place=has / GIB)
        self.dials["link_bytes_per_s"].rescale(link(reply.own_link_bytes_per_s))

    def _use(self) -> None:
        """Hand the run spec of the answer over."""
        reply = self.reply
        if reply is None or reply.row is None or not reply.row.fits:
            return
        self.spec = reply.run_spec()
        words = f"Handed over: {reply.row.label}, {self.spec.model.layers} layers."
        if self.spec.link_bytes_per_s != self.question.spec.link_bytes_per_s:
            words += " Without the slower link, which a GPU cannot be made to have."
        self.used.value = html.live(words)
        if self._on_use is not None:
            self._on_use(self.spec)

    def _failed(self, error: Exception) -> None:
        """A defect of ours: say so, and do not go on."""
        self.answer.value = html.live(f"this page cannot go on: {error}", "bad")


def _put(place: widgets.HTML, value: str) -> None:
    """Send only what changed: a page that is sent again loses what was selected in it."""
    if place.value != value:
        place.value = value
