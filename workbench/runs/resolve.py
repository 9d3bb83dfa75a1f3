"""Resolves a spec on this machine: open settings are decided, and impossible ones are named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from workbench.core import host, methods
from workbench.core.paths import user_path
from workbench.core.sources import by_content, config_file
from workbench.core.spec import RunSpec
from workbench.model import corpus
from workbench.model.custom import imports_digest, source_digest
from workbench.model.tokenizer_folder import FILE as TOKENIZER_FILE
from workbench.model.tokenizer_folder import files_of, is_folder
from workbench.model.weights.stored import beside, digest_of


def resolve(spec: RunSpec, results: Path | None = None) -> RunSpec:
    """The spec as it would run here: its device and text decided, of a user's own module what its
    file says now, and of options that name a file among `results` what that says.

    Raises ValueError for an unknown method, or a device, module or file that is not here.
    """
    changes = {"device": host.resolve_device(spec.device)}
    method = check_method(spec)
    if spec.start_from and not method.portable:
        able = ", ".join(m.name for m in methods.known().values() if m.portable)
        raise ValueError(
            f"start_from is {spec.start_from!r}, and {method.name} has checkpoints of its engine's "
            f"own form; it is for {able}"
        )
    if spec.model.custom and not spec.model.config_digest:
        changes["model"] = replace(spec.model, config_digest=source_digest(spec.model.family))
    elif file := config_file(spec.model):
        changes["model"] = replace(spec.model, family=str(file))
    trained = begins_from(spec, results)
    changes["model"] = replace(changes.get("model", spec.model), pretrained=trained)
    if spec.names_weights:
        changes["weights"] = trained
    # The key must not depend on the folder we are in.
    changes["text"] = _place_of_text(spec)
    changes["eval_text"] = spec.eval_text and _place_of_text(spec.held_out)
    if spec.start_from and (run := user_path(spec.start_from)).is_dir():
        changes["start_from"] = str(run.resolve())
    spec = spec.with_(**changes)
    return spec if results is None else settled(spec, results)


def _place_of_text(spec: RunSpec) -> str:
    """The path of the spec's text, where it is one and there is something."""
    text = user_path(spec.text)
    if spec.text in corpus.BUNDLED or not text.exists():
        return spec.text
    # A link may have the ending that its file has not.
    return str(text.parent.resolve() / text.name if spec.model.rows else text.resolve())


def settled(spec: RunSpec, results: Path) -> RunSpec:
    """The spec with what files among `results` say that its options name, and the path of a run
    that its weights name. Raises ValueError for a file that is not there or does not go with it."""
    changes = dict(spec.options.settled(spec, results))
    if spec.names_weights:
        changes["weights"] = begins_from(spec, results)
    return spec.with_(**changes) if changes else spec


def check_method(spec: RunSpec, *, gpus: bool = True) -> methods.Method:
    """The spec's method. Raises ValueError where it does not train the model, not on so many ranks,
    or (`gpus`) where this machine has no GPU for each, or for what is on."""
    method = methods.find(spec.method)
    if spec.ranks > 1 and not method.parallel:
        raise ValueError(
            f"ranks is {spec.ranks}; {method.name} runs on one device, so it must be 1"
        )
    methods.check_model(method, spec.model)
    on = [name for name in ("compile", "replay") if getattr(spec, name) == "on"]
    if gpus and on and host.resolve_device(spec.device) == "cpu":
        raise ValueError(f"{on[0]} is on, and the device is cpu; give cuda, or leave it at auto")
    has = len(host.gpus())
    if gpus and spec.ranks > max(1, has) and host.resolve_device(spec.device) == "cuda":
        raise ValueError(f"ranks is {spec.ranks}; this machine has {has} GPUs, a rank needs one")
    return method


def begins_from(spec: RunSpec, results: Path | None = None) -> str:
    """The path of the weights that a run of the spec begins from; empty for random ones, and where
    it goes on from a checkpoint. A name may be that of a run among `results`."""
    if spec.names_weights:
        place = user_path(spec.weights)
        run = results and results / "runs" / spec.weights
        return str((run if run and run.is_dir() and not place.exists() else place).resolve())
    if spec.weights == "random" or spec.start_from:
        return ""
    file = config_file(spec.model)
    found = user_path(spec.model.pretrained) if spec.model.pretrained else file and beside(file)
    return str(found.resolve()) if found else ""


class Keys:
    """Keys of many specs on this machine; the code of each method is looked at once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Callable[[str], str], str], str] = {}

    def of(self, spec: RunSpec) -> str:
        """Raises ValueError for an unknown method or device, and weights that cannot be read."""
        spec, build = resolve(spec), host.torch_build()
        facts = [
            self._told(methods.code_version, spec.method),
            self._told(host.device_class, spec.device),
            build.version if build else "",
        ]
        instead = {"text": self._told(corpus.source_digest, spec.text) or spec.text}
        if spec.eval_text:
            told = self._told(corpus.source_digest, spec.eval_text)
            instead["eval_text"] = told or spec.eval_text
        if spec.model.custom:
            facts.append(self._told(imports_digest, spec.model.family))
        instead |= by_content(spec.model)
        if is_folder(spec.tokenizer):
            files = files_of(spec.tokenizer) if spec.model.rows else ()
            files = files or (user_path(spec.tokenizer) / TOKENIZER_FILE,)
            told = [self._told(corpus.source_digest, str(file)) for file in files]
            instead["tokenizer"] = " ".join(filter(None, told)) or spec.tokenizer
        if spec.model.pretrained:  # wherever they lie, and whoever named them
            instead["pretrained"] = self._told(digest_of, spec.model.pretrained)
            spec = spec.with_(weights="auto")
        return spec.key(*facts, **instead)

    def _told(self, look: Callable[[str], str], name: str) -> str:
        if (look, name) not in self._known:
            self._known[look, name] = look(name)
        return self._known[look, name]


def key_of(spec: RunSpec) -> str:
    """Key of a spec on this machine. Raises ValueError for an unknown method or device."""
    return Keys().of(spec)
