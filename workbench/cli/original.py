"""``workbench run --config FILE.json``: a configuration of the original FTPipe, as words of `run`.

The flags beside it are the original's: a key of the configuration each, and ``--KEY_from_cmd``,
which lets it count before the file's. Flags of our own (``--results``, ``--set``, ``-l``, ...) may
follow, and count before both. ``--mode dist`` and ``mp`` train, ``preproc`` reads the data, and
``eval`` evaluates the newest checkpoint of that run.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.core.jsonfile import parse_json
from workbench.core.options import takes
from workbench.core.spec import RunSpec, field_of
from workbench.methods.ftpipe.configuration import KEYS, METHOD, Configuration, translate
from workbench.runs.overrides import FIELDS, flag, read_object

MODES = ("dist", "mp", "preproc", "eval")
CMD = "_from_cmd"


def main(words: Sequence[str], run: Callable[[Sequence[str]], int]) -> int:
    """Exit code; `run` is what our own words are given to. Raises ValueError as the translation
    does."""
    config, given, mode, others = _split(words)
    made = translate(merged(read(Path(config)), given))
    values = made.values
    for note in made.notes:
        print(f"workbench: {note}", file=sys.stderr)
    ours = [*_words(values | ({"steps": 1} if made.epochs else {})), *others]
    spec = None
    if made.epochs or mode in ("preproc", "eval"):
        spec, folder = _spec(ours)
        samples = _samples(spec, folder)
        if made.epochs:
            steps = max(1, made.epochs * samples // spec.batch)
            ours, spec = [*ours, "--steps", str(steps)], spec.with_(steps=steps)
    if mode == "preproc":
        print(f"{samples} samples an epoch")
        return 0
    if mode == "eval":
        return _evaluate(*_spec(ours))
    print(f"workbench: as {shlex.join(['workbench', 'run', *ours])}", file=sys.stderr)
    return run(["run", *ours])


def read(path: Path, within: Sequence[Path] = ()) -> dict[str, Any]:
    """A configuration with what it inherits: a child's values replace its bases', a later base's an
    earlier one's. Raises ValueError for a base that inherits itself."""
    path = path.resolve()
    if path in within:
        way = " -> ".join(each.name for each in (*within, path))
        raise ValueError(f"the configuration {path.name} inherits itself: {way}")
    own, found = read_object(path, "configuration"), {}
    bases, beside = own.pop("base_config_path", []), own.pop(RELATIVE, False)
    for base in [bases] if isinstance(bases, str) else bases:
        found |= read(path.parent / base if beside else Path(base), (*within, path))
    return found | own


RELATIVE = "base_config_path_is_relative"


def merged(config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration, and what a command line has `given`: its value of a key counts where the
    configuration has none, or either says ``KEY_from_cmd``. Raises ValueError for other keys."""
    both = {**given, **config}
    switches = [*config.items(), *given.items()]
    first = {key.removesuffix(CMD) for key, on in switches if key.endswith(CMD) and on}
    if lacking := sorted(first - given.keys()):
        raise ValueError(f"{lacking[0]}{CMD} is set, and no --{lacking[0]} was given")
    found = {key: value for key, value in both.items() if not key.endswith(CMD)}
    found |= {key: given[key] for key in first}
    if unknown := sorted(found.keys() - KEYS):
        raise ValueError(f"the configuration has the unknown key {unknown[0]!r}")
    return found


def _split(words: Sequence[str]) -> tuple[str, dict[str, Any], str, list[str]]:
    """The file, keys that are given, the mode, and words of our own."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", required=True)
    parser.add_argument("--mode", default="mp")
    absent, switch = argparse.SUPPRESS, {"nargs": "?", "const": True}
    for key in sorted(KEYS):
        more = switch if isinstance(getattr(Configuration, key, None), bool) else {}
        parser.add_argument(f"--{key}", type=_value, default=absent, **more)
        parser.add_argument(f"--{key}{CMD}", action="store_true", default=absent)
    known, others = parser.parse_known_args(words)
    given = vars(known)
    config, mode = given.pop("config"), given.pop("mode")
    if mode not in MODES:
        raise ValueError(f"--mode is {mode!r}; it must be {', '.join(MODES)}")
    return config, given, mode, others


def _value(text: str) -> Any:
    try:
        return parse_json(text, "a value")
    except ValueError:
        return text


def _words(values: Mapping[str, Any]) -> list[str]:
    """Words of our command line."""
    words = []
    for name, value in values.items():
        field = field_of(name)
        text = field.format(field.check(value))
        own = name in FIELDS or takes(METHOD, name) or name == "method"
        words += [flag(name), text] if own else ["--set", f"{name}={text}"]
    return words


def _spec(words: Sequence[str]) -> tuple[RunSpec, Path]:
    """The spec of our words, and the folder of its run."""
    from workbench.cli import make_parser
    from workbench.cli.spec import specs_from
    from workbench.runs.inputs import check_inputs
    from workbench.runs.resolve import resolve
    from workbench.runs.runner import Job
    from workbench.runs.store import Store

    arguments = make_parser().parse_args(["run", *words])
    (spec,) = (resolve(each) for each in specs_from(arguments, window="auto"))
    store = Store(arguments.results)
    check_inputs([spec], store)
    return spec, store.folder(Job(spec, store).key)


def _samples(spec: RunSpec, folder: Path) -> int:
    from workbench.model import make_model
    from workbench.training.run import load_batches

    return len(load_batches(spec, make_model(spec.model, spec.seed), folder / "cache"))


def _evaluate(spec: RunSpec, folder: Path) -> int:
    """Print figures of the newest checkpoint of a run."""
    from workbench.runtime.checkpoint import checkpoint
    from workbench.training.evaluation import Evaluator

    saved = next(checkpoint.whole(folder / "checkpoints"), None)
    if saved is None:
        raise ValueError(f"there is no checkpoint to evaluate in {folder / 'checkpoints'}; train "
                         "with save_checkpoints first")  # fmt: skip
    evaluator = Evaluator(spec, folder, epoch=_samples(spec, folder))
    weights, statistics = evaluator.in_files(saved.path), checkpoint.statistics(saved)
    found = evaluator.evaluate(weights, statistics, saved.manifest.next_step)
    print(json.dumps(found, indent=1))
    return 0
