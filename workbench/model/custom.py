"""Models of the user's own: the family ``package.module:function`` is what that function makes.

It is called with the `ModelSpec`, whose numbers mean there what it takes them for, and gives an
`nn.Module`, or a list of modules that are called one after another. Weights begin as it left them
after the generators of torch, numpy and Python were given the seed of the run; for each sample that
is read, they are given one of the sample's own. Alone, the module takes token ids [B, seq] of the
run's text and puts out logits [B, seq, vocab]. Given as ``(module, samples)`` it takes what the
samples hold, each a tuple of what the module takes and, last, the target: a `TensorDataset`, or
anything else with a length and an index. The loss is the mean cross entropy, or for targets that
are no whole numbers the mean squared error, of the one tensor that the module puts out, or of the
``logits`` among several. Labels of -100 are left out, any number of them: the loss of a step is the
mean over all others of its batch, however that is divided.

Code that stands between a module's submodules is followed, call by call; a submodule without
children is run as it is. So code that cannot be followed, such as a switch of autocast, goes into
one, or the function gives a list, whose modules are all run as they are. Nowhere may values decide
what is called or how much there is (``x[x > 0]``): ``torch.where`` and masks choose. What is made
without naming a device is made where the layer runs.

A parameter that asks for no gradient, or that none reaches, is not trained, and has no part in the
norm that gradients are clipped by.

Buffers, too, are the function's own after the run's seed. Modules that write theirs in forward
passes are refused, but for BatchNorm, whose statistics are kept as if nothing were divided.

Modules are looked for in Python's own library, in the current folder, then in what is installed.
Imports no torch.
"""

from __future__ import annotations

import importlib
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workbench.core import sources
from workbench.core.files import read_whole
from workbench.core.model_spec import FUNCTION

OURS = ("workbench", "baselines")
LIBRARY = sysconfig.get_path("stdlib")
STDLIB = frozenset(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
INSTALLED = frozenset({"site-packages", "dist-packages"})


def source_digest(family: str) -> str:
    """SHA-256 of the file that the function is in. Raises ValueError where there is no such file;
    imports nothing, and asks none of Python's finders."""
    name, _ = _parts(family)
    found = sources.Modules(_folders()).find(name)
    if found is None or found.file is None:
        raise ValueError(
            f"the family {family!r} is not there: no module {name!r} in {Path.cwd()}, nor where "
            "Python looks"
        )
    read_whole(found.file, f"the file of {family!r}")
    return sources.file_digest(found.file)


def imports_digest(family: str) -> str:
    """SHA-256 of all files of the user's own that importing the function's module runs: of its
    package, and of what is neither Python's, nor installed, nor ours."""
    name, _ = _parts(family)

    def own(module: str, file: Path) -> bool:
        top = module.partition(".")[0]
        others = top in OURS or INSTALLED & {*file.parts} or STDLIB & {*file.parents}
        return top == name.partition(".")[0] or not others

    return sources.imports_digest([name], _folders(), own)


def function_of(family: str, digest: str = "") -> Callable[..., Any]:
    """The function. Raises ValueError where there is none, where its file fails to be imported, and
    where that is no longer of this digest."""
    now = source_digest(family)
    if digest and now != digest:
        raise ValueError(
            f"the file of {family!r} changed: its SHA-256 begins with {now[:12]}, and with "
            f"{digest[:12]} when the spec was made"
        )
    name, function = _parts(family)
    with importing():
        try:
            module = importlib.import_module(name)
        except Exception as error:
            raise _failed(family, error) from error
    made = getattr(module, function, None)
    if not callable(made):
        raise ValueError(f"the family {family!r} is not there: {name!r} has no function {function}")
    return made


@contextmanager
def importing() -> Iterator[None]:
    """With the current folder where Python looks, whatever started this process."""
    here = str(Path.cwd())
    added = look_here()
    try:
        yield
    finally:
        if added:
            sys.path.remove(here)


def look_here() -> bool:
    """Have Python look in the current folder after its own library, before what is installed, so
    that a file there stands for none of its modules; False where it looks there already."""
    here = str(Path.cwd())
    if here in sys.path:
        return False
    own = [n for n, path in enumerate(sys.path, 1) if path in (LIBRARY, f"{LIBRARY}/lib-dynload")]
    sys.path.insert(max(own, default=len(sys.path)), here)
    return True


def _parts(family: str) -> tuple[str, str]:
    match = FUNCTION.fullmatch(family)
    assert match is not None
    return match[1], match[2]


def _folders() -> list[str]:
    return [str(Path.cwd()), *sys.path]


def _failed(family: str, error: Exception) -> ValueError:
    return ValueError(
        f"the family {family!r} cannot be imported: {type(error).__name__}: {error}".split("\n")[0]
    )
