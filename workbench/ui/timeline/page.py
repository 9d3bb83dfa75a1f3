"""The timeline as one HTML file that needs nothing else: no server, no network, no widget library.

The file may be opened from anywhere by anybody, and the text in it comes from logs and specs. So
the data stands in it as JSON whose angle brackets are written as escapes, which ends no element;
the script puts text in as text; and the page's own policy allows no other script and no request.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from pathlib import Path
from typing import Any

from workbench.core.files import write_whole

HERE = Path(__file__).parent
PARTS = (
    "timeline_scale.js",
    "timeline_columns.js",
    "timeline_paint.js",
    "timeline_words.js",
    "timeline_cursor.js",
    "timeline.js",
)
"""One module, in pieces that a reader can hold: a widget's script can import nothing beside it."""
STYLE = """
:root { color-scheme: light dark; }
body { margin: 0 auto; padding: 1rem; max-width: 120rem; background: #fff; }
@media (prefers-color-scheme: dark) { body { background: #111417; } }
"""
START = """
const data = JSON.parse(document.getElementById("timeline-data").textContent);
show(data, document.getElementById("timeline"));
"""


def script() -> str:
    """The module of the timeline, for a widget and for a page."""
    return "\n".join((HERE / part).read_text() for part in PARTS)


def style() -> str:
    """Style of the timeline, for a widget and for a page."""
    return (HERE / "timeline.css").read_text()


def save_html(data: dict[str, Any], path: str | Path) -> Path:
    """Write `timeline_html` to a file, whole or not at all; returns its path."""
    path = Path(path)
    write_whole(path, timeline_html(data))
    return path


def timeline_html(data: dict[str, Any]) -> str:
    """The page that shows what `timeline_data` made."""
    module, css = script() + START, STYLE + style()
    title = html.escape(data["title"] or "Timeline")
    policy = (
        f"default-src 'none'; script-src '{_digest(module)}'; style-src '{_digest(css)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>{css}</style>\n</head>\n<body>\n"
        '<main id="timeline"></main>\n'
        f'<script type="application/json" id="timeline-data">{embedded(data)}</script>\n'
        f'<script type="module">{module}</script>\n</body>\n</html>\n'
    )


def embedded(data: dict[str, Any]) -> str:
    """JSON that stays inside its element, whatever text it holds.

    >>> embedded({"name": "</script>"})
    '{"name":"\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":  # JSON has them in strings only, where an escape means the same
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _digest(text: str) -> str:
    """How a content security policy names an inline text."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
