"""The evaluation in JupyterLab, as a newcomer meets it: open, run all, press buttons."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.reading import unnamed
from tests.browser.servers import ROOT, TOKEN, Server, jupyter_lab
from tests.runs.helpers import left_behind, living, role, wait_for
from workbench.runs.campaign import Campaign
from workbench.runs.store import Store

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.conftest import Open

pytestmark = [pytest.mark.browser, pytest.mark.slow]
NOTEBOOK, SWEEP = "artifact_evaluation.ipynb", "sweep.ipynb"
KEY_MS = 50
"""A fast typist's; the kernel follows, and a button that cannot be pressed yet is passed by."""


@pytest.fixture
def lab(tmp_path: Path, store: Store) -> Iterator[Server]:
    """JupyterLab over copies of the notebooks, at the tiny size."""
    import nbformat  # takes seconds, which every worker would spend

    folder = tmp_path / "notebooks"
    folder.mkdir()
    for name, first in ((NOTEBOOK, 'size = "tiny"'), (SWEEP, 'sweep = ""')):
        notebook = nbformat.read(ROOT / "notebooks" / name, as_version=4)
        (parameters,) = (c for c in notebook.cells if "parameters" in c.metadata.get("tags", ()))
        parameters.source = f"{first}\nresults = {str(store.root)!r}"
        nbformat.write(notebook, folder / name)
    with jupyter_lab(folder) as server:
        yield server


def opened(open_page: Open, lab: Server, name: str = NOTEBOOK) -> Page:
    watched = open_page(f"{lab.origin}/lab/tree/{name}?token={TOKEN}&reset")
    page = watched.page
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.get_by_text(re.compile(r"\| Idle")).wait_for()
    return page


def run_all(page: Page) -> None:
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name=re.compile("^Run All Cells")).click()


def restart_and_run_all(page: Page) -> None:
    page.get_by_role("menuitem", name="Kernel", exact=True).click()
    page.get_by_role("menuitem", name=re.compile("^Restart Kernel and Run All Cells")).click()
    page.locator(".jp-Dialog .jp-mod-accept").click()


def click(page: Page, name: str) -> None:
    button = page.get_by_role("button", name=name, exact=True).locator("visible=true")
    button.first.scroll_into_view_if_needed()
    button.first.click()


def test_from_opening_the_notebook_to_the_first_figure(
    open_page: Open, lab: Server, store: Store, shots: Path, answered
) -> None:
    with answered("JupyterLab: from opening the notebook to its first figure", 90):
        page = opened(open_page, lab)
        run_all(page)
        page.get_by_text("figure 8b: Scaling with depth").click()
        page.get_by_role("img", name=re.compile("^fig8b: ")).wait_for()
    page.screenshot(path=shots / "first.png")
    assert unnamed(page, at_least=15) == []


def test_a_sweep_without_a_mouse(open_page: Open, lab: Server, store: Store, shots: Path) -> None:
    page = opened(open_page, lab, SWEEP)
    run_all(page)
    page.get_by_label("logarithmic y").wait_for()  # the last of the panels
    assert unnamed(page, at_least=35) == []
    cells = page.locator(".jp-Notebook .jp-Cell").count()
    keys, focus = page.keyboard, "document.activeElement.textContent"
    page.get_by_label("method", exact=True).first.focus()
    keys.type("plain")  # a notebook would take some of these for commands
    for text in ("2", "32", "2", "16", "256", "2", "1", "4"):  # layers to steps
        keys.press("Tab")
        keys.type(text, delay=KEY_MS)
    page.get_by_role("button", name="Start", exact=True, disabled=False).first.wait_for()
    for _ in range(20):
        keys.press("Tab", delay=KEY_MS)
        if page.evaluate(focus) == "Start":
            break
    assert page.evaluate(focus) == "Start"
    keys.press("Enter")
    page.get_by_text(re.compile("1 runs?: 1 finished")).first.wait_for()
    assert [(r.status, r.spec["model"]["layers"]) for r in store.records()] == [("ok", 2)]
    assert page.get_by_text("Mode: Command").count() == 1, "no key was taken for an edit"
    assert page.locator(".jp-Notebook .jp-Cell").count() == cells, "nor for a cut"
    row = page.locator(".wb-runs tbody tr").filter(has_text="finished")
    row.focus()
    keys.press("Space")
    assert row.get_attribute("aria-selected") == "true"
    page.get_by_role("button", name="Timeline", disabled=False).wait_for()
    page.screenshot(path=shots / "sweep.png")


def test_run_cancel_restart_and_go_on(open_page: Open, lab: Server, store: Store) -> None:
    page = opened(open_page, lab)
    run_all(page)
    page.get_by_text("figure 8a: Throughput on one model").click()
    click(page, "Run")
    page.get_by_text(re.compile("running; .*on the processors")).wait_for()
    campaign = Campaign(store, "fig8a-tiny")
    wait_for(lambda: role("worker", store.root))

    restart_and_run_all(page)  # in the middle: what runs ends with the kernel
    wait_for(lambda: campaign.status().state == "interrupted")
    assert left_behind(store.root) == []
    page.get_by_text("figure 8a: Throughput on one model").wait_for()
    page.get_by_text("figure 8a: Throughput on one model").click()
    page.get_by_text("it goes on with the remaining runs").locator("visible=true").first.wait_for()

    click(page, "Run")
    wait_for(lambda: campaign.status().state == "running")
    click(page, "Cancel")
    page.get_by_text("it was cancelled").locator("visible=true").first.wait_for()
    assert campaign.status().state == "cancelled"


def test_the_server_killed_leaves_nothing(
    open_page: Open, lab: Server, store: Store, answered
) -> None:
    page = opened(open_page, lab)
    run_all(page)
    page.get_by_text("figure 8a: Throughput on one model").click()
    click(page, "Run")
    wait_for(lambda: role("worker", store.root))
    family = lab.family()
    lab.kill()
    with answered("JupyterLab: killed, until nothing of it is left", 20):
        assert left_behind(store.root) == []
        wait_for(lambda: not living(family))
