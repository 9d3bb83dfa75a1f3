"""All panels on one page: made when they are opened, and going on from one another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tornado.httpclient import AsyncHTTPClient
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port

from workbench.page import TEMPLATE, configuration, notebook, serve, strange
from workbench.ui.dashboard import Dashboard
from workbench.ui.planner.control import Question


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Dashboard]:
    page = Dashboard(tmp_path / "results", size="tiny")
    yield page
    for panel in page.panels.values():
        panel.close()


def test_a_tab_is_made_when_it_is_opened(page: Dashboard) -> None:
    assert list(page.panels) == ["Results"]
    page.tabs.selected_index = 2
    assert list(page.panels) == ["Results", "Sweep"]
    panel = page.panels["Sweep"]
    page.open("Results")
    page.open("Sweep")
    assert page.panels["Sweep"] is panel
    with pytest.raises(ValueError, match="Nowhere"):
        page.open("Nowhere")


def test_what_was_planned_can_be_run(page: Dashboard) -> None:
    asked = Question.of(method="l2l", layers=48, device_memory="24GiB", dtype="bf16", heads=32)
    page.open("Plan")
    page.panels["Plan"]._on_use(asked.spec)
    assert page.tabs.titles[page.tabs.selected_index] == "Sweep"
    form = page.panels["Sweep"].form
    assert form.specs() == [asked.spec]
    assert form.text("layers") == "48"
    assert form.text("hidden") == "", "what is usual is not written down"
    assert not page.panels["Sweep"].buttons["start"].disabled


def test_the_served_page_asks_nobody_else_and_has_both_themes(tmp_path: Path) -> None:
    assert "prefers-color-scheme: dark" in TEMPLATE
    assert "http" not in TEMPLATE
    settings = configuration(1, "token", tmp_path)
    policy = settings["Voila"]["tornado_settings"]["headers"]["Content-Security-Policy"]
    assert "http" not in policy
    (cell,) = notebook(tmp_path, "smoke").cells
    assert "confined=True" in cell.source


def test_the_served_page_answers_to_no_foreign_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from voila.app import Voila  # takes seconds, which every worker would spend

    found: list[Voila] = []  # what serves; a site whose name leads here sends that as the host
    monkeypatch.setattr(Voila, "listen", lambda app: found.append(app))
    serve(tmp_path, echo=str)

    async def codes(host: str) -> list[int]:
        server, (sock, port) = HTTPServer(found[0].app), bind_unused_port()
        server.add_sockets([sock])
        asked = {"headers": {"Host": host}, "follow_redirects": False, "raise_error": False}
        paths = ("/", "/voila/render/workbench.ipynb", "/api/kernels/k/channels")
        get = AsyncHTTPClient().fetch
        answers = [await get(f"http://127.0.0.1:{port}{path}", **asked) for path in paths]
        server.stop()
        return [answer.code for answer in answers]

    for host in ("evil.example:8888", "192.0.2.1", "localhost.evil.example"):
        assert set(asyncio.run(codes(host))) == {403}
    for host in ("127.0.0.1:8888", "localhost"):
        assert asyncio.run(codes(host))[0] == 302, "to where the token is asked for"
    found[0].stop()


def test_a_request_that_leads_upwards_or_is_no_text_names_nothing() -> None:
    odd = ("/..%2f", "/a/..", "/%2e%2e/x", "/%5c..%5cx", "/%00", "/%c3%28")
    for path in (*odd, *(f"/voila/templates/{each}" for each in ("x", "lab/static/", "lab/x/y"))):
        assert strange(path, {}), path
    for path in ("/", "/voila/static/a.js", "/voila/templates/lab/static/a.b/c..js", "/api/k%20x"):
        assert not strange(path, {"token": [b"abc", b""]}), path
        assert strange(path, {"token": [b"abc", "\u00e9".encode()]})
