"""The host optimizer with and without a compiler."""

import pytest

from workbench.runtime.updates import host_adam


@pytest.fixture(params=["compiled", "torch"])
def backend(request, monkeypatch):
    """Runs the test with the compiled kernel, and again with torch's as without a compiler."""
    if request.param == "torch":
        monkeypatch.setattr(host_adam, "_kernel", lambda: None)
    elif host_adam.backend() != "compiled":
        pytest.skip("this machine has no C++ compiler")
    return request.param


@pytest.fixture
def compiled():
    if host_adam.backend() != "compiled":
        pytest.skip("this machine has no C++ compiler")
