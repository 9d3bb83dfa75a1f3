"""The dashboard as a page without code: a token, no files, nothing from outside, and buttons."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.browser.servers import ROOT, Server, page, status_of
from tests.runs.helpers import connections, left_behind, role, wait_for
from tests.unit.ui.made_up_records import failed, fill, put, record
from workbench.runs.campaign import Campaign
from workbench.runs.store import Store

if TYPE_CHECKING:
    from tests.browser.conftest import Open

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def server(store: Store) -> Iterator[Server]:
    with page(store.root) as server:
        yield server


def test_it_listens_to_this_machine_asks_for_a_token_and_serves_no_files(server: Server) -> None:
    listening = {
        connection.laddr.ip
        for process in [psutil.Process(server.process.pid), *server.family()]
        for connection in connections(process)
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}
    for path in ("/", "/api/kernels", "/voila/render/workbench.ipynb"):
        assert "/login" in status_of(server.origin + path)[1], "without the token"
    token = server.url.partition("?")[2]
    for path in ("workbench.ipynb", "../../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd"):
        code, where = status_of(f"{server.origin}/voila/files/{path}?{token}")
        assert code in (403, 404) or "/login" in where, path
        code, where = status_of(f"{server.origin}/api/contents/{path}?{token}")
        assert code in (403, 404) or "/login" in where, path


def test_run_and_cancel_from_two_tabs(
    open_page: Open, server: Server, store: Store, shots: Path
) -> None:
    watched = open_page(server.url)
    tab = watched.page
    tab.get_by_role("tab", name="Evaluate").click()
    tab.get_by_text("figure 8a: Throughput on one model").click()
    tab.get_by_role("button", name="Run", exact=True).locator("visible=true").first.click()
    tab.get_by_text(re.compile("running; .*on the processors")).wait_for()
    campaign = Campaign(store, "fig8a-tiny")
    pid = campaign.status().pid

    other = open_page(server.url).page
    other.get_by_role("tab", name="Evaluate").click()
    other.get_by_text("figure 8a: Throughput on one model").click()
    other.get_by_text(re.compile("running; .*on the processors")).wait_for()
    run = other.get_by_role("button", name="Run", exact=True).locator("visible=true").first
    assert run.is_disabled(), "it is not started twice"
    other.screenshot(path=shots / "second-tab.png")
    other.get_by_role("button", name="Cancel", exact=True).locator("visible=true").first.click()
    tab.get_by_text("it was cancelled").locator("visible=true").first.wait_for()
    assert campaign.status().pid == pid
    assert campaign.status().state == "cancelled"
    assert watched.errors == []
    assert [url for url in watched.left if "fontawesome" not in url] == []


def test_the_server_killed_leaves_nothing(open_page: Open, server: Server, store: Store) -> None:
    tab = open_page(server.url).page
    tab.get_by_role("tab", name="Evaluate").click()
    tab.get_by_text("figure 8a: Throughput on one model").click()
    tab.get_by_role("button", name="Run", exact=True).locator("visible=true").first.click()
    wait_for(lambda: role("worker", store.root))
    assert not tab.get_by_role("alert").count()
    server.kill()
    tab.get_by_role("alert").get_by_text("does not answer").wait_for()
    assert not tab.locator(".wb-panel button:not(:disabled)").count()
    campaign = Campaign(store, "fig8a-tiny")
    wait_for(lambda: not campaign.alive)
    assert left_behind(store.root) == []
    assert campaign.status().state == "interrupted"


def test_a_sweep_from_the_form_to_the_plot(
    open_page: Open, server: Server, store: Store, shots: Path
) -> None:
    watched = open_page(server.url)
    tab = watched.page
    tab.get_by_role("tab", name="Sweep").click()
    store.root.mkdir(exist_ok=True)
    (store.root / "own.json").write_text('{"base": {"method": "plain", "seq": 24}}')
    path = tab.get_by_label("sweep file", exact=True).locator("visible=true")
    path.fill(os.path.relpath(store.root / "own.json", ROOT))  # to where the page was started
    path.press("Tab")
    tab.get_by_role("button", name="Load", exact=True).locator("visible=true").click()
    seq = tab.get_by_label("sequence length", exact=True).locator("visible=true").first
    wait_for(lambda: seq.input_value() == "24")
    fields = {
        "layers": "2, 3", "hidden size": "32", "attention heads": "2", "sequence length": "16",
        "vocabulary": "256", "batch": "2", "steps": "4",
    }  # fmt: skip
    methods = tab.get_by_label("method", exact=True).locator("visible=true")
    methods.select_option(label="plain torch: everything on the device, in torch alone")
    for name, text in fields.items():
        field = tab.get_by_label(name, exact=True).locator("visible=true").first
        field.fill(text)
        field.press("Tab")
    tab.screenshot(path=shots / "form.png", full_page=True)
    tab.get_by_role("button", name="Start", exact=True).locator("visible=true").first.click()
    wait_for(lambda: Campaign.all(store))
    (campaign,) = Campaign.all(store)
    wait_for(lambda: campaign.status().state == "done")
    assert [record.status for record in store.records()] == ["ok", "ok"]
    tab.get_by_role("tab", name="Results").click()
    tab.get_by_role("grid", name="runs").locator("visible=true").wait_for()
    tab.get_by_role("img").locator("visible=true").first.wait_for()
    tab.screenshot(path=shots / "results.png", full_page=True)
    assert watched.errors == []


def test_runs_are_found_chosen_and_stay_so_while_others_come(
    open_page: Open, server: Server, store: Store
) -> None:
    fill(store, 40)
    put(store, failed(100, "oom_device", method="l2l"))
    watched = open_page(server.url)
    tab = watched.page
    shown = tab.locator(".dt-info")
    shown.get_by_text("Runs 1 to 25 of 41").wait_for()
    tab.get_by_label("find").fill("out of memory")
    shown.get_by_text("Runs 1 to 1 of 1").wait_for()
    tab.get_by_label("find").fill("")
    tab.get_by_label("filter layers").fill(">= 24")
    tab.get_by_label("filter method").fill("stronghold")
    shown.get_by_text("Runs 1 to 4 of 4").wait_for()
    tab.get_by_text("throughput over layers, 4 runs").wait_for()
    tab.get_by_role("columnheader", name="throughput").click()
    rows = tab.locator(".wb-runs tbody tr")
    rows.nth(0).click()
    rows.nth(1).press("Space")
    first = rows.nth(0).get_attribute("id")
    assert float(rows.nth(0).locator("td").nth(5).inner_text()) < 15
    tab.get_by_role("img", name="Losses over steps of A").wait_for()
    tab.get_by_label("filter window").focus()
    put(store, record(200, method="stronghold", layers=96))
    shown.get_by_text("Runs 1 to 5 of 5").wait_for()
    assert tab.locator(".wb-runs tr[aria-selected=true]").count() == 2
    assert rows.nth(1).get_attribute("id") == first, "sorted as it was"
    assert tab.evaluate("document.activeElement.getAttribute('aria-label')") == "filter window"
    tab.get_by_role("button", name="Compare", exact=True).click()
    tab.get_by_role("cell", name="step time", exact=True).wait_for()
    with tab.expect_download() as download:
        tab.get_by_role("button", name="CSV").click()
        tab.get_by_role("link", name="Download runs-").click()
    assert len(Path(download.value.path()).read_text().splitlines()) == 6
    assert watched.errors == []
    assert watched.left == []
