"""Buttons of a panel, pressed as JupyterLab has them pressed: in a thread of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from jupyter_client import BlockingKernelClient
from jupyter_client.manager import run_kernel

from tests.runs.helpers import HANG_S, wait_for

BUTTON = """
import threading
import ipywidgets

pressed = []

def press(button):
    pressed.append(threading.current_thread() is threading.main_thread())
    button.description = str(len(pressed))  # who changes it hears of it from then on

button = ipywidgets.Button()
button.on_click(press)
"""
FRAMED = "from workbench.ui.frame_panel import framed\nframed([button])\nframed([])"


@pytest.fixture
def kernel() -> Iterator[BlockingKernelClient]:
    with run_kernel(kernel_name="python3") as client:
        yield client


def told(kernel: BlockingKernelClient, expression: str) -> str:
    """Value of an expression in the kernel."""
    heard: list[str] = []
    kernel.execute_interactive(
        f"print({expression})",
        output_hook=lambda message: heard.append(message["content"].get("text", "")),
        timeout=HANG_S,
    )
    return "".join(heard).strip()


def run(kernel: BlockingKernelClient, code: str) -> None:
    assert kernel.execute_interactive(code, timeout=HANG_S)["content"]["status"] == "ok"


def press(kernel: BlockingKernelClient, times: int) -> str:
    """Text that was noted each time."""
    kernel.control_channel.send(kernel.session.msg("create_subshell_request"))
    subshell = kernel.get_control_msg(timeout=HANG_S)["content"]["subshell_id"]
    data = {"method": "custom", "content": {"event": "click"}}
    content = {"comm_id": told(kernel, "button.comm.comm_id"), "data": data}
    for number in range(1, times + 1):
        message = kernel.session.msg("comm_msg", content)
        message["header"]["subshell_id"] = subshell
        kernel.shell_channel.send(message)
        wait_for(lambda number=number: told(kernel, "len(pressed)") == str(number))
    return told(kernel, "pressed")


def test_a_button_of_a_panel_is_pressed_where_timers_tick(kernel):
    run(kernel, BUTTON + FRAMED)
    assert press(kernel, 3) == "[True, True, True]"


def test_where_there_is_no_panel_it_is_another_thread(kernel):
    """Else the test above could not fail."""
    run(kernel, BUTTON)
    assert press(kernel, 3) == "[True, False, False]"
