"""Reading a model profile from the open JSON format.

One object: `model`, `layers` (their number, loss included), per-layer arrays in bytes (`w_bytes`,
`b_bytes`, `k_bytes`, `x_bytes_per_sample`), `cpu_update_time` in microseconds, the profiled sizes
`fwd_microbatch` and `bwd_microbatch`, and four tables: `fwd_time`, `bwd_time` in microseconds,
`fwd_memory`, `bwd_memory` in bytes. A table is `{"class": [...], "values": [...]}`: layer l has the
row `values[class[l]]`, with one entry per size, so that equal layers are written once.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from workbench.core.jsonfile import read_object
from workbench.methods.harmony.published.profiles import Measured, ModelProfile


def load(path: str | Path) -> ModelProfile:
    """A profile; ValueError that names the file and what is wrong with it."""
    path = Path(path)
    data = read_object(path, path.name)
    return _Reader(path.name, data).profile()


class _Reader:
    """Takes fields out of a file's object, and says what is wrong in terms of the file."""

    def __init__(self, name: str, data: dict[str, Any]) -> None:
        self.name, self.data = name, data
        self.layers = self._count("layers")

    def profile(self) -> ModelProfile:
        model = self._get("model")
        if not isinstance(model, str):
            raise self._wrong(f"`model` must be a name, not {model!r}")
        target = self.data.get("target_bytes_per_sample", 0)
        return ModelProfile(
            model=model,
            forward=self._measured("fwd"),
            backward=self._measured("bwd"),
            weight_bytes=self._per_layer("w_bytes"),
            buffer_bytes=self._per_layer("b_bytes"),
            state_bytes=self._per_layer("k_bytes"),
            input_bytes=self._per_layer("x_bytes_per_sample"),
            update_seconds=tuple(us * 1e-6 for us in self._per_layer("cpu_update_time")),
            target_bytes=self._numbers("target_bytes_per_sample", [target], 1)[0],
        )

    def _measured(self, prefix: str) -> Measured:
        sizes = self._sizes(f"{prefix}_microbatch")
        micros = self._table(f"{prefix}_time", len(sizes))
        seconds = {id(row): tuple(us * 1e-6 for us in row) for row in micros}
        return Measured(
            microbatches=sizes,
            seconds=tuple(seconds[id(row)] for row in micros),
            peak_bytes=tuple(self._table(f"{prefix}_memory", len(sizes))),
        )

    def _sizes(self, key: str) -> tuple[int, ...]:
        sizes = self._get(key)
        whole = isinstance(sizes, list) and all(type(size) is int and size > 0 for size in sizes)
        if not whole or not sizes or sorted(set(sizes)) != sizes:
            raise self._wrong(f"`{key}` must list whole sizes from 1 on, ascending")
        return tuple(sizes)

    def _table(self, key: str, columns: int) -> list[tuple]:
        """One row per layer; equal layers share the row."""
        table = self._get(key)
        if not isinstance(table, dict) or not {"class", "values"} <= table.keys():
            raise self._wrong(f"`{key}` must be an object with `class` and `values`")
        classes, values = table["class"], table["values"]
        if not isinstance(values, list):
            raise self._wrong(f"`{key}.values` must be a list of rows")
        rows = [
            self._numbers(f"{key}.values[{index}]", row, columns)
            for index, row in enumerate(values)
        ]
        for index in self._numbers(f"{key}.class", classes, self.layers):
            if type(index) is not int or index >= len(rows):
                raise self._wrong(f"`{key}.class` names row {index} of {len(rows)}")
        return [rows[index] for index in classes]

    def _per_layer(self, key: str) -> tuple:
        return self._numbers(key, self._get(key), self.layers)

    def _numbers(self, key: str, values: Any, length: int) -> tuple:
        if not isinstance(values, list) or len(values) != length:
            found = len(values) if isinstance(values, list) else "no list"
            raise self._wrong(f"`{key}` must hold {length} numbers, found {found}")
        for value in values:
            if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
                raise self._wrong(f"`{key}` holds {value!r}, which is no finite number from 0 on")
        return tuple(values)

    def _count(self, key: str) -> int:
        value = self._get(key)
        if type(value) is not int or value < 1:
            raise self._wrong(f"`{key}` must be a whole number from 1 on, not {value!r}")
        return value

    def _get(self, key: str) -> Any:
        if key not in self.data:
            raise self._wrong(f"`{key}` is missing")
        return self.data[key]

    def _wrong(self, what: str) -> ValueError:
        return ValueError(f"{self.name} is not a model profile: {what}")
