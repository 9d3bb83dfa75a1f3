"""Two records side by side: settings, results with their ratio, losses, lanes, bytes.

One of them may have failed, or have kept no timeline: what there is is compared, and a sentence
says what there is not.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.options import catalogue
from workbench.core.record import RunRecord
from workbench.runs.store import Store, row
from workbench.ui.runs_table_fields import ENDINGS, Row, number, plain, settings
from workbench.ui.runs_table_files import check_key, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BESIDE_SETTINGS = ("engine", "device_class", "commit", "source")
"""Not chosen, but a reason for another result."""
RESULTS = (
    "step_seconds", "samples_per_second", "final_loss", "steps_done", "seconds", "parameters",
    "peak_device_bytes", "peak_host_bytes", "peak_disk_bytes", "window", "resident",
)  # fmt: skip
WAYS = ("load", "store", "read", "write")


class Comparison:
    """Two runs of a store. Raises ValueError where one of them has no record that can be read.

    Lanes are read, and a prediction is made, when they are asked for: that may take seconds.
    """

    def __init__(self, store: Store, key_a: str, key_b: str) -> None:
        self.store = store
        self.keys = (check_key(key_a), check_key(key_b))
        if key_a == key_b:
            raise ValueError(f"{plain(key_a)} is compared with itself; choose two records")
        self.records: tuple[RunRecord, RunRecord] = tuple(map(self._find, self.keys))
        self._rows = [{**row(record), "steps_done": len(record.losses)} for record in self.records]
        self._lanes: list[Row] | None = None
        self._notes: list[str] = []

    @property
    def names(self) -> tuple[str, str]:
        """Each run in a few words: ``A: stronghold, 0303d1c1``."""
        first, second = (
            f"{letter}: {plain(record.method, 40)}, {plain(record.key, 8).rstrip(chr(0x2026))}"
            for letter, record in zip("AB", self.records, strict=True)
        )
        return first, second

    def settings(self) -> list[Row]:
        """``setting, a, b``: what was chosen differently, and other reasons for another result."""
        known = list(dict.fromkeys(name for found in self._rows for name in found))
        names = [n for n in known if n in settings() | {"method"} or n.startswith("asked_")]
        usual = {name: option.default for name, option in catalogue().items()}
        found = []
        for name in [*names, *BESIDE_SETTINGS]:
            lacking = usual.get(name.removeprefix("asked_"))  # of a method without the option
            a, b = (values.get(name, lacking) for values in self._rows)
            if a != b and name not in RESULTS:
                found.append({"setting": name, "a": a, "b": b})
        return found

    def results(self) -> list[Row]:
        """``result, a, b, ratio``: b over a where both are numbers and a is not 0."""
        found = [{"result": "status", **self._pair("status"), "ratio": None}]
        for name in RESULTS:
            pair = self._pair(name)
            if pair["a"] is not None or pair["b"] is not None:
                found.append({"result": name, **pair, "ratio": _ratio(pair["a"], pair["b"])})
        return found

    def bytes_moved(self) -> list[Row]:
        """``way, a, b, ratio, predicted_a, predicted_b``: bytes a steady step over each link."""
        found = []
        for way in WAYS:
            measured = self._pair(f"moved_{way}_bytes")
            said = self._pair(f"predicted_moved_{way}_bytes")
            if any(value is not None for value in (*measured.values(), *said.values())):
                found.append(
                    {
                        "way": way,
                        **measured,
                        "ratio": _ratio(measured["a"], measured["b"]),
                        "predicted_a": said["a"],
                        "predicted_b": said["b"],
                    }
                )
        return found

    def losses(self) -> list[list[float | None]]:
        """The losses of both, step by step; what is not finite is None."""
        return [[number(value) for value in record.losses] for record in self.records]

    def lanes(self) -> list[Row]:
        """``rank, lane, words`` and ``a, b, predicted_a, predicted_b``: busy seconds a step.

        None where a run has no timeline, or nothing is predicted for it; `notes` says why.
        """
        if self._lanes is None:
            found: dict[tuple[int, str], Row] = {}
            notes: list[str] = []
            for letter, key in zip("ab", self.keys, strict=True):
                try:
                    timeline = _timeline(self.store, key)
                except ValueError as error:
                    notes.append(f"{letter.upper()}: {plain(error, 300)}.")
                    continue
                notes += [f"{letter.upper()}: {plain(note, 300)}" for note in timeline["notes"]]
                _add_lanes(found, timeline, letter)
            columns = ("a", "b", "predicted_a", "predicted_b")
            self._lanes = [
                {**names, **{c: values.get(c) for c in columns}}
                for names, values in (
                    ({k: v[k] for k in ("rank", "lane", "words")}, v) for v in found.values()
                )
            ]
            self._notes = notes
        return self._lanes

    def notes(self) -> list[str]:
        """Missing parts and why they are missing, one sentence each."""
        found = []
        for letter, record in zip("AB", self.records, strict=True):
            if record.status != "ok":
                ending = ENDINGS[record.status].words
                why = plain(record.message, 300).rstrip(".")
                found.append(f"{letter}: {ending}: {why}." if why else f"{letter}: {ending}.")
            if not record.losses:
                found.append(f"{letter}: it made no step, so it has no losses.")
            elif any(number(value) is None for value in record.losses):
                found.append(f"{letter}: some of its losses are not finite and are not drawn.")
        self.lanes()
        return found + self._notes

    def order(self) -> dict[str, Any]:
        """The figure as plain data, from which `runs_table_pair.draw_pair` makes it, anywhere."""
        return {
            "draw": "pair",
            "names": list(self.names),
            "losses": self.losses(),
            "lanes": self.lanes(),
        }

    def figure(self) -> Figure:
        """Losses as two curves, and busy seconds of each lane."""
        from workbench.ui.runs_table_pair import draw_pair

        return draw_pair(self.order())

    def save(self, name: str) -> list[Path]:
        """Write the figure (PDF, PNG) and what it is compared by (CSV); returns their paths.

        Raises ValueError for a bad name, and StoreError.
        """
        return save_figure(self.store, self.figure(), self.table(), name)

    def table(self) -> list[Row]:
        """Everything that is compared, one row each: ``part, name, a, b, ratio, predicted_a,
        predicted_b``."""
        parts = (
            ("settings", "setting", self.settings()),
            ("results", "result", self.results()),
            ("bytes a step", "way", self.bytes_moved()),
            ("busy seconds a step", "words", self.lanes()),
        )
        columns = ("a", "b", "ratio", "predicted_a", "predicted_b")
        return [
            {"part": part, "name": found[name], **{c: found.get(c) for c in columns}}
            for part, name, rows in parts
            for found in rows
        ]

    def _find(self, key: str) -> RunRecord:
        record = self.store.find(key)
        if record is None:
            raise ValueError(f"there is no record {plain(key, 60)}, or none that can be read")
        return record

    def _pair(self, name: str) -> Row:
        return dict(zip("ab", (values.get(name) for values in self._rows), strict=True))


def _ratio(a: Any, b: Any) -> float | None:
    below, above = number(a), number(b)
    return above / below if below and above is not None else None


def _timeline(store: Store, key: str) -> dict[str, Any]:
    # Simulating needs the planner, which a comparison without timelines does not.
    from workbench.ui.timeline_run import run_timeline

    return run_timeline(store, key)


def _add_lanes(found: dict[tuple[int, str], Row], timeline: dict[str, Any], letter: str) -> None:
    """The busy seconds a step of one run's blocks."""
    for block in timeline["blocks"]:
        column = letter if block["source"] == "measured" else f"predicted_{letter}"
        each = block["each"] or block["span"]  # nanoseconds; of a single step there is no distance
        for place, lane in zip(timeline["rows"], block["lanes"], strict=True):
            key = (place["rank"], place["lane"])
            if lane["last"] > lane["first"]:
                here = found.setdefault(key, dict(place))
                here[column] = lane["busy"] * each * 1e-9
