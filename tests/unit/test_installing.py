"""uv installs as pip's settings say, and pip where uv cannot."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def installing(root: Path):
    spec = importlib.util.spec_from_file_location("installing", root / "scripts/installing.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_uv_is_told_pips_settings(installing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "https://wheels.example/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://one.example https://two.example")
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels")
    monkeypatch.setenv("PIP_CERT", "/certificates.crt")
    arguments, variables = installing.told(installing.pip_settings(sys.executable))
    assert " ".join(arguments).startswith(
        "--default-index https://wheels.example/simple --index https://one.example "
        "--index https://two.example --find-links /wheels"
    )
    assert variables["SSL_CERT_FILE"] == "/certificates.crt"


@pytest.mark.parametrize("lacking", ["install uv", "installs with uv"])
def test_pip_installs_where_uv_cannot(installing, lacking: str) -> None:
    done = []

    def run(title: str, command: list[str], env: dict[str, str]) -> None:
        by_uv = "uv" in command[:3]
        if (lacking == "install uv" and title == "installing uv") or by_uv:
            raise RuntimeError("no")
        done.append((title, command[-1], env))

    installer = installing.Installer(sys.executable, run, lambda text: None)
    installer.install("installing it", ["it"], {"A": "1"})
    assert done[-1] == ("installing it", "it", {"A": "1"})
    assert len(done) == (1 if lacking == "install uv" else 2)
