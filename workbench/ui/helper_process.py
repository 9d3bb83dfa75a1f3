"""A helper process for work that would hold a notebook's kernel up: planning, reading, drawing.

A kernel has one interpreter lock. Whatever takes a second of Python there, in a thread or not, is a
second in which a slider does not answer. So a panel asks a process of its own: `ask` names a
function of this project and its arguments (plain data), and returns at once a `HelperAnswer` that
is filled in later. The process starts when first asked, keeps its imports, ends with the process
that started it, and is started anew if it dies.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from queue import SimpleQueue
from typing import Any

from workbench.core.paths import import_path

END_S = 2.0


class HelperAnswer:
    """The answer to one question, once it is there."""

    def __init__(self) -> None:
        self.done = False
        self.value: Any = None
        """Plain data, as the function returned it."""
        self.error = ""
        """One sentence, where there is no value."""
        self._seen = False

    def is_new(self) -> bool:
        """Whether it is there and this was not asked since."""
        if not self.done or self._seen:
            return False
        self._seen = True
        return True


class HelperProcess:
    """One helper process; close it, or let it end with this process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen | None = None
        self._asked: dict[int, HelperAnswer] = {}
        self._count = 0
        self._lock = threading.Lock()

    def ask(self, function: str, **arguments: Any) -> HelperAnswer:
        """Have ``package.module:function`` called in the helper; questions are answered in
        order."""
        answer = HelperAnswer()
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self._lost(self._process)  # the listening thread may not have said so yet
                self._process = None
            if self._process is None:
                self._start()
            self._count += 1
            self._asked[self._count] = answer
            question = {"id": self._count, "function": function, "arguments": arguments}
            try:
                self._process.stdin.write(json.dumps(question) + "\n")
                self._process.stdin.flush()
            except OSError:
                self._lost(self._process)
        return answer

    def leave(self) -> None:
        """Leave all questions unanswered, at once; the next question starts the process anew."""
        process, self._process = self._process, None
        self._asked.clear()
        if process is not None:
            process.kill()  # the listening thread waits for its end

    def close(self) -> None:
        """End the process; open questions stay unanswered."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(OSError):
                process.stdin.close()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "workbench.ui.helper_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env={**os.environ, **import_path()},
        )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen) -> None:
        """Read answers until the process ends; waiting for a line costs the kernel nothing."""
        for line in process.stdout:
            told = json.loads(line)
            answer = self._asked.pop(told["id"], None)
            if answer is not None:
                answer.value, answer.error = told["value"], told["error"]
                answer.done = True
        process.stdout.close()
        process.wait()
        with self._lock:
            self._lost(process)

    def _lost(self, process: subprocess.Popen) -> None:
        """Give all open questions of a process that died an error."""
        if self._process not in (process, None):
            return
        for answer in self._asked.values():
            answer.error = "the helper process of this page was ended; ask again"
            answer.done = True
        self._asked.clear()


def serve(lines: Any, say: Callable[[str], object]) -> None:
    """Answer questions, a line each, until there are no more."""
    for line in lines:
        question = json.loads(line)
        told: dict[str, Any] = {"id": question["id"], "value": None, "error": ""}
        try:
            module, _, name = question["function"].partition(":")
            told["value"] = getattr(import_module(module), name)(**question["arguments"])
        except Exception as error:
            told["error"] = " ".join(str(error).split()) or type(error).__name__
        say(json.dumps(told) + "\n")


def lines_of(stream: Iterable[str]) -> Iterator[str]:
    """Lines as they come. At their end the asking process is gone, and this process ends at once,
    whatever it is working on."""
    waiting: SimpleQueue[str] = SimpleQueue()

    def listen() -> None:
        for line in stream:
            waiting.put(line)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        yield waiting.get()


def main() -> None:
    """Answer questions of standard input on standard output, which nothing else may write to."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    serve(lines_of(sys.stdin), out.write)


if __name__ == "__main__":
    main()
