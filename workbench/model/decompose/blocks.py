"""The modules of a model that become layers."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from torch import nn

LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


def choose(model: nn.Module) -> set[str]:
    """Paths of the modules that become layers. From the top:

    * an element of a ModuleList, ModuleDict or Sequential that has children is a layer, unless it
      is a stage: itself a list of blocks of one class, or with one among its children (the
      elements of a stage are not asked whether they are stages);
    * so is a module of a class that occurs twice among its siblings, unless such a list is in it;
    * so is any other module in which there are neither lists nor repeated classes;
    * other modules with children are opened, and the rules used inside;
    * a module without children is a layer if it has parameters.

    Where that is a single one with children, it is opened, too.
    """
    found, path = {*_choose(model, "", top=True)}, ""
    while len(found) == 1 and found != {path}:
        (path,) = found
        found = {*_choose(model.get_submodule(path), path, top=True)}
    return found or {path}


def around(model: nn.Module, at: Collection[str]) -> set[str]:
    """Paths of the largest modules that can be called and hold none of the modules at these paths:
    their code is not followed, and all code around them is. The modules themselves are among
    them."""
    above = {"", *(path[:end] for path in at for end in _ends(path))}
    for path, module in model.named_modules():
        if path.rpartition(".")[0] in above and type(module) in (nn.ModuleList, nn.ModuleDict):
            above.add(path)
    return {
        path
        for path, module in model.named_modules()
        if path not in above and path.rpartition(".")[0] in above
    }


def _ends(path: str) -> Iterator[int]:
    """Where the paths of the modules above end."""
    return (place for place, letter in enumerate(path) if letter == ".")


def _choose(
    module: nn.Module,
    path: str,
    *,
    top: bool = False,
    element: bool = False,
    twin: bool = False,
    staged: bool = False,
) -> Iterator[str]:
    children = dict(module.named_children())
    if not children:
        if has_weights(module):
            yield path
        return
    is_list = type(module) in LISTS
    stage = element and not staged and _is_stage(module)
    if is_list:
        opened = not element or type(module) is not nn.Sequential or stage
    elif element:
        opened = stage
    elif twin:
        opened = any(map(_lists_blocks, module.modules()))
    else:
        opened = any(len(m) > 1 for m in module.modules() if type(m) in LISTS) or any(
            map(_twins, module.modules())
        )
    if not (opened or top):
        yield path
        return
    twins = _twins(module)
    for name, child in children.items():
        below = f"{path}.{name}" if path else name
        yield from _choose(
            child, below, element=is_list, twin=type(child) in twins, staged=staged or stage
        )


def has_weights(module: nn.Module) -> bool:
    """Whether there is a parameter in it."""
    return next(module.parameters(), None) is not None


def _has_children(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def _lists_blocks(module: nn.Module) -> bool:
    return type(module) in LISTS and any(map(_has_children, module.children()))


def _is_stage(module: nn.Module) -> bool:
    for part in (module, *module.children()):
        blocks = [type(child) for child in part.children() if _has_children(child)]
        if type(part) in LISTS and len(blocks) == len(part) > 1 and len(set(blocks)) == 1:
            return True
    return False


def _twins(module: nn.Module) -> set[type]:
    """Classes that several children of a module have, not counting lists and childless ones."""
    if type(module) in LISTS:
        return set()
    kinds = [type(c) for c in module.children() if _has_children(c)]
    return {kind for kind in kinds if kinds.count(kind) > 1 and kind not in LISTS}
