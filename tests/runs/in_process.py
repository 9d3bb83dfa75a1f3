"""The process beside a page, played by this one, which knows the fake method."""

from __future__ import annotations

import json
import os
from importlib import import_module
from unittest import mock

from workbench.ui.helper_process import HelperAnswer


class InProcess:
    """Answers at once. Everything passes through JSON, as it would between processes."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, function: str, **arguments: object) -> HelperAnswer:
        self.asked.append(function)
        answer = HelperAnswer()
        module, _, name = function.partition(":")
        try:
            with mock.patch.object(os, "setpriority"):  # the test's own process stays as it is
                value = getattr(import_module(module), name)(**json.loads(json.dumps(arguments)))
            answer.value = json.loads(json.dumps(value))
        except Exception as error:
            answer.error = str(error)
        answer.done = True
        return answer

    def close(self) -> None:
        pass
