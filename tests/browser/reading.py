"""Reads a page as somebody does who cannot see it, or has no mouse, or a small screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

PANEL = ".wb-panel"
CONTROLS = {
    "button", "checkbox", "combobox", "listbox", "progressbar", "radio", "searchbox", "slider",
    "spinbutton", "switch", "tab", "textbox", "image", "region",
}  # fmt: skip
"""Roles that mean nothing without a name."""
FOCUSABLE = """() => [...document.querySelectorAll(
  ".wb-panel :is(button, input, select, textarea, canvas, [tabindex='0'])"
)].filter((e) => !e.disabled && e.tabIndex >= 0 && e.checkVisibility({ visibilityProperty: true }))
  .length"""
HERE = """() => {
  const e = document.activeElement, style = getComputedStyle(e);
  if (!e.closest(".wb-panel")) return null;
  const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  const name = e.labels?.[0]?.textContent || e.getAttribute("aria-label") || e.textContent;
  return [name.trim().slice(0, 60), seen];
}"""
OUTSIDE = """() => {
  const found = [];
  for (const e of document.querySelectorAll(".wb-panel *")) {
    if (e.closest(".wb-scroll, pre, select") || !e.checkVisibility()) continue;
    const { right, left, width } = e.getBoundingClientRect();
    if (width && (right > innerWidth + 1 || left < -1)) {
      found.push(`${e.tagName} ${e.className}: ${left} to ${right}`);
    }
  }
  return found.slice(0, 5);
}"""


def controls(page: Page, within: str = PANEL) -> dict[str, list[str]]:
    """Role -> names of the controls of the panels, as the browser tells assistive technology."""
    session = page.context.new_cdp_session(page)
    session.send("Accessibility.enable")
    root = session.send("DOM.getDocument")["root"]["nodeId"]
    panels = session.send("DOM.querySelectorAll", {"nodeId": root, "selector": within})["nodeIds"]
    found: dict[str, list[str]] = {}
    told = set()
    for panel in panels:
        for node in session.send("Accessibility.queryAXTree", {"nodeId": panel})["nodes"]:
            role = node.get("role", {}).get("value", "").lower()
            if node["ignored"] or role not in CONTROLS or node["nodeId"] in told:
                continue
            told.add(node["nodeId"])  # panels lie in panels
            found.setdefault(role, []).append(node.get("name", {}).get("value", "").strip())
    session.detach()
    return found


def unnamed(page: Page, at_least: int) -> list[str]:
    """Roles of controls that have no name, or that share one with another slider or text field.

    `at_least` so many controls there must be: a test of nothing proves nothing.
    """
    found = controls(page)
    assert sum(map(len, found.values())) >= at_least, found
    odd = [role for role, names in found.items() if "" in names]
    typed = [name for role in ("slider", "textbox") for name in found.get(role, ())]
    return odd + [name for name in {*typed} if typed.count(name) > 1]


def walk(page: Page, limit: int = 120) -> list[str]:
    """Tab through the panels from the top; returns what was reached, each shown to have the focus.

    Fails where the focus cannot be seen, or where something is left out.
    """
    page.evaluate("() => { document.activeElement.blur(); getSelection().removeAllRanges(); }")
    page.locator(PANEL).first.evaluate(
        "(e) => { e.tabIndex = -1; e.focus(); e.removeAttribute('tabindex'); }"
    )
    reached = []
    for _ in range(limit):
        page.keyboard.press("Tab")
        here = page.evaluate(HERE)
        if here is None:
            break
        reached.append(here[0])
        assert here[1], f"{here[0]!r} does not show that it has the keyboard"
    assert len(reached) == page.evaluate(FOCUSABLE), reached
    return reached


def outside(page: Page) -> list[str]:
    """Elements that stick out of the window sideways; contents of a scrolling element may."""
    return page.evaluate(OUTSIDE)
