"""The reader of every file format: errors name the place, the value and what would fit."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import pytest

from workbench.core.jsonfile import parse_json
from workbench.core.schema import Measured, read_as


@dataclass(frozen=True, kw_only=True)
class Inner:
    width: int
    kind: Literal["a", "b"] = "a"

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"width is {self.width}; it must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner
    losses: list[Measured] = field(default_factory=list)
    rate: float | None = None
    window: int | Literal["auto"] = "auto"
    peaks: dict[str, int | None] = field(default_factory=dict)
    span: tuple[int, int] = (0, 1)
    parts: tuple[Inner, ...] = ()


def test_data_that_fits_becomes_the_dataclass() -> None:
    data = {
        "inner": {"width": 3},
        "losses": ["nan", 1, 2.5],
        "rate": 2,
        "window": 4,
        "peaks": {"host": None, "device": 7},
        "span": [2, 3],
        "parts": [{"width": 1, "kind": "b"}],
    }
    found = read_as(Outer, data, "the file")
    assert math.isnan(found.losses[0])
    assert found.losses[1:] == [1.0, 2.5]
    assert type(found.rate) is float
    assert (found.window, found.peaks, found.span) == (4, {"host": None, "device": 7}, (2, 3))
    assert found.parts == (Inner(width=1, kind="b"),)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"inner": {}}, "the file: inner: the field 'width' is missing"),
        ({"inner": {"width": True}}, "the file: inner.width is True; it must be a whole number"),
        ({"inner": {"width": 2**63}}, "inner.width is 9223372036854775808; it must be a whole"),
        ({"inner": {"width": 0}}, "the file: inner: width is 0; it must be at least 1"),
        ({"inner": {"width": 1, "wide": 1}}, "inner: unknown field 'wide'; known: kind, width"),
        ({"inner": [1]}, "the file: inner is [1]; it must be an object"),
        ({"losses": [1.0, None]}, "losses[1] is None; it must be a number, or one of the texts"),
        ({"losses": ["NaN"]}, "losses[0] is 'NaN'; it must be a number, or one of the texts nan"),
        ({"rate": math.inf}, "rate is inf; it must be a number or null"),
        ({"rate": 10**400}, "it must be a number or null"),
        ({"window": "all"}, "window is 'all'; it must be a whole number or auto"),
        ({"peaks": []}, "peaks is []; it must be an object"),
        ({"peaks": {"host": "1"}}, "peaks.host is '1'; it must be a whole number or null"),
        ({"span": [1]}, "span is [1]; it must be a list of 2 values"),
        ({"parts": [{"width": "x"}]}, "parts[0].width is 'x'; it must be a whole number"),
    ],
)
def test_an_error_names_the_place_the_value_and_what_would_fit(
    change: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match="the file") as error:
        read_as(Outer, {"inner": {"width": 1}} | change, "the file")
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "nested too deep"),
        ("9" * 5000, "a number of 5000 digits is too large"),
        ("1e999", "1e999 is too large"),
        ("NaN", "NaN is no number of JSON"),
        ('{"a": {"b": 1, "b": 1}}', "the key 'b' stands twice"),
        (b"\xff{}", "byte 0 is not UTF-8"),
        ('"\\ud800"', "surrogate"),
        ("{", "line 1"),
    ],
)
def test_text_that_is_no_json_is_one_sentence(text: str | bytes, why: str) -> None:
    with pytest.raises(ValueError, match="^the file is not JSON: ") as error:
        parse_json(text, "the file")
    assert why in str(error.value)


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a": 1}', "the file") == {"a": 1}
