"""A real browser for tests: Chromium as it is installed, headless, on pages that ask nobody else.

`open_page` opens a page and watches it: requests to anything but what the test allows are stopped
and kept in `Watched.left`, so that "no request leaves the machine" is one assertion, for a file as
for a page that Jupyter serves. A test without playwright or Chromium is skipped with the reason
(../conftest.py), so nothing here imports playwright before a test runs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from tests.runs.helpers import HANG_S, store_at
from workbench.runs.store import Store

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

LAUNCH = (
    "--no-sandbox",  # containers have no user namespaces
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NAMES = ("chromium", "chromium-browser", "google-chrome")
SCREEN = {"width": 1280, "height": 720}
INSIDE = ("data", "blob", "about")
"""Addresses that ask nobody."""


@dataclass
class Watched:
    """A page, and what it did that a test may want to know."""

    page: Page
    left: list[str] = field(default_factory=list)
    """Requests to anything that was not allowed; they were stopped."""
    errors: list[str] = field(default_factory=list)
    """Exceptions that nothing caught."""


Open = Callable[..., Watched]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    yield from store_at(tmp_path / "results")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for a file of tests; each page has a profile of its own.

    Not for the whole session: while playwright is there, this thread counts as one that runs an
    event loop, and other tests run their own.
    """
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, NAMES)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(LAUNCH))
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Browser, request: pytest.FixtureRequest) -> Iterator[Open]:
    """`open_page(address, allow=(), before="", **context)`, as often as a test likes.

    `address` is a URL, or the path of a file, which is opened with the network switched off.
    `allow` are further origins that may be asked, ``before`` is a script that runs before the
    page's own, `context` goes to the browser's context (``color_scheme``, ``viewport``, ...).
    """
    contexts = []
    request.node.watched = []

    def opened(
        address: str | Path, allow: tuple[str, ...] = (), before: str = "", **context: Any
    ) -> Watched:
        url = address.as_uri() if isinstance(address, Path) else address
        mine = chromium.new_context(
            **{"viewport": SCREEN, "offline": isinstance(address, Path), **context}
        )
        contexts.append(mine)
        mine.set_default_timeout(1000 * HANG_S)
        watched = Watched(mine.new_page())
        request.node.watched.append(watched)
        watched.page.on("pageerror", lambda error: watched.errors.append(str(error)))

        def judge(route: Route) -> None:
            if _allowed(route.request.url, url, allow):
                route.continue_()
            else:
                watched.left.append(route.request.url)
                route.abort()

        mine.route("**/*", judge)
        if before:
            mine.add_init_script(before)
        watched.page.goto(url)
        return watched

    yield opened
    for context in contexts:
        context.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Any:
    """Add the text of the page to the report of a failed test: elsewhere, that is all there is to
    see."""
    report = yield
    watched = getattr(item, "watched", [])
    if report.when == "call" and report.failed:
        for number, each in enumerate(watched, 1):
            with suppress(Exception):  # the page may be what broke
                report.sections.append((f"page {number}", each.page.inner_text("body")))
            report.sections.append((f"page {number}, errors", "\n".join(each.errors) or "none"))
    return report


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    """A folder for screenshots, which pytest keeps for a while."""
    folder = tmp_path / "screenshots"
    folder.mkdir()
    return folder


def _allowed(asked: str, page: str, allow: tuple[str, ...]) -> bool:
    """Whether a request stays with the page: its own origin, or the very file."""
    parts = urlsplit(asked)
    if parts.scheme in INSIDE or asked == page:
        return True
    if parts.scheme == "file":
        return False
    origins = {_origin(page), *map(_origin, allow)}
    return _origin(asked) in origins


def _origin(url: str) -> tuple[str, int | None]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port
