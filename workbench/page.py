"""``workbench page``: the dashboard as a page without code, for a browser on this machine.

Voila serves one notebook of one cell out of a folder that holds nothing else. It listens on
loopback only, answers to no other name, asks for a token, serves no files, and its answers forbid
the browser to ask any other server for anything; what people may name in it, runs/confines.py says.
When it ends, however it ends, its kernels end with it, and the runs they started, unless somebody
wanted those to go on.
"""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from workbench.cli.spec import Parser, add_results_flag
from workbench.core.notebook_files import quick_nbformat
from workbench.runs.store import Store

HOST = "127.0.0.1"
POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; connect-src 'self'; frame-ancestors 'self'; "
    "form-action 'self'; object-src 'none'"
)
"""JupyterLab's scripts need to evaluate; nothing comes from, or goes to, another server."""
TEMPLATE = """{%- extends 'voila/templates/lab/index.html.j2' -%}
{%- import 'spinner.macro.html.j2' as spinner -%}
{%- block notebook_css -%}
{{ resources.include_js('static/voila-style.js') }}
{{ spinner.css() }}
{{ resources.include_css('static/index.css') }}
{{ resources.include_css('static/theme-light.css') }}
{% set dark = '<link media="(prefers-color-scheme: dark)"' %}
{{ resources.include_css('static/theme-dark.css') | replace('<link' | safe, dark | safe) }}
<style>
:root {color-scheme: light dark}
.jp-Collapser, .jp-mod-noOutputs.jp-mod-noInput {display: none}
</style>
{%- endblock notebook_css -%}
"""
"""Voila's page, but light or dark as the reader's system is, and without links to other servers."""
IDLE_S = 600
"""A kernel whose page was closed ends after so long."""
CELL = """import os, sys

sys.path[:] = filter(None, sys.path)
os.chdir({here!r})

from workbench.ui.dashboard import Dashboard

Dashboard({results!r}, size={size!r}, confined=True).widget"""
"""Nothing is imported from the folder to which what people type is relative."""


def configuration(port: int, token: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Voila's settings, by class."""
    return {
        "Voila": {
            "ip": HOST,
            "port": port,
            "port_retries": 0,
            "token": token,
            "open_browser": False,
            "root_dir": str(folder),
            "tornado_settings": {
                "headers": {"Content-Security-Policy": POLICY},
                # Voila allows any host: a site whose name is made to lead here would be let in.
                "allow_remote_access": False,
                "local_hostnames": ["localhost"],
            },
        },
        "VoilaConfiguration": {
            "file_allowlist": [],
            "file_denylist": [".*"],
            "show_tracebacks": False,
            "theme": "light",
        },
        "MappingKernelManager": {"cull_idle_timeout": IDLE_S, "cull_interval": 30},
    }


def notebook(results: Path, size: str) -> Any:
    """The page's notebook. Relative paths in it are relative to here, as on the command line."""
    nbformat = quick_nbformat()
    code = CELL.format(results=str(results), size=size, here=os.getcwd())
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    made.metadata["title"] = "Workbench"
    return made


def free_port(wanted: int) -> int:
    """The port, or any free one for 0. Raises ValueError for one that is taken, or is
    none."""
    if not 0 <= wanted < 1 << 16:
        raise ValueError(f"port {wanted} is none; ports are 1 to 65535, and 0 is any that is free")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted))
        except OSError as error:
            raise ValueError(
                f"port {wanted} cannot be used ({error.strerror}); give another, or 0 for any"
            ) from None
        return probe.getsockname()[1]


def strange(path: str, arguments: Mapping[str, Sequence[bytes]]) -> bool:
    """Whether a request names nothing that there can be; Voila's own code fails at some of it."""
    try:
        parts = unquote(path, errors="strict").replace("\\", "/").split("/")
        b"".join(chain.from_iterable(arguments.values())).decode("ascii")
    except UnicodeDecodeError:
        return True
    lost = parts[1:3] == ["voila", "templates"] and (parts[4:5] != ["static"] or not parts[5:])
    return lost or {".", ".."} & {*parts} != set() or "" in parts[5:] or "\0" in "".join(parts)


def serve(results: Path, *, size: str = "smoke", port: int = 0, echo: Any = print) -> None:
    """Serve the page until it is interrupted. Raises ValueError for a port that is taken."""
    nbformat = quick_nbformat()
    from tornado.routing import Matcher, Rule
    from tornado.web import ErrorHandler
    from traitlets.config import Config
    from voila.app import Voila

    class Strange(Matcher):
        def match(self, request: Any) -> Any:
            return {} if strange(request.path, request.query_arguments) else None

    class Page(Voila):
        def init_handlers(self) -> list[Any]:
            nowhere = Rule(Strange(), ErrorHandler, {"status_code": 404})
            return [nowhere, *super().init_handlers()]

    port, token = free_port(port), secrets.token_urlsafe(24)
    with tempfile.TemporaryDirectory(prefix="workbench-page-") as folder:
        path = Path(folder) / "workbench.ipynb"
        nbformat.write(notebook(results, size), path)
        server = Page(config=Config(configuration(port, token, Path(folder))))
        server.initialize([str(path)])
        (Path(folder) / "index.html.j2").write_text(TEMPLATE)
        server.template_paths.insert(0, folder)
        echo(f"http://{HOST}:{port}/?token={token}")
        server.start()


def make_parser() -> Parser:
    """The verb's flags."""
    parser = Parser(
        prog="workbench page",
        description="Serve the dashboard to a browser on this machine; its address has a token.",
    )
    add_results_flag(parser)
    sizes = "size of the evaluation's figures (default smoke, for any machine)"
    parser.add_argument("--size", default="smoke", choices=("smoke", "small", "paper"), help=sizes)
    port = "port to listen on (default 0: any that is free)"
    parser.add_argument("--port", type=int, default=0, metavar="N", help=port)
    return parser


def main(argv: Sequence[str]) -> int:
    """Exit code 0 when it was interrupted."""
    options = make_parser().parse_args(argv)
    serve(Store(options.results).root, size=options.size, port=options.port)
    return 0
