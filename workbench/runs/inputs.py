"""A run's input files, seen to be usable before anything is written or started. Imports torch where
a model has to be made for that, or tokens to be read, and numpy for what is read here.

A worker refuses them as well, since they may change; by then the run has a folder and a record.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.core import methods
from workbench.core.model_spec import ANSWERING, GPT_FAMILY, OF_DECODERS, PICTURED
from workbench.core.paths import user_path
from workbench.core.sources import config_file
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.model.corpus import BUNDLED, DIGITS, STDLIB, read_corpus
from workbench.model.hf_config import spec_from_config
from workbench.model.room import BYTES, IDS, bpe_size, check_room, trained_on, windows
from workbench.model.tokenizer_folder import AS_BYTES, FILE, is_folder
from workbench.runs.chosen import possible
from workbench.runs.resolve import begins_from, key_of
from workbench.runs.store import Store
from workbench.runtime.checkpoint.continues import check_start, paths_of

ROOMY = 8
"""Tokens of a sample, and words beside a tokenizer's, with which any model reads ``stdlib``."""
LONGEST_TOKEN = 64
"""Bytes; texts of many samples have more tokens than one in so many."""


def check_inputs(specs: list[RunSpec], store: Store) -> None:
    """Raise ValueError for a model, a text, a tokenizer or a run to start from that is not there or
    cannot be used, as far as that shows without tokenizing a long text. Each is read once; tokens
    of rows, which are long in the making, are kept in the store for its runs, unless something is
    refused."""
    with _kept_if_good(store):
        _check_inputs(specs, store)


def check_starts(specs: list[RunSpec], store: Store) -> None:
    """Raise ValueError where the run that specs start from has no checkpoint of the same training:
    by manifests, before any text is read, then by the text, whose tokens are kept for the run. No
    module of a user's own is made for this, so its data is left to the worker."""
    with _kept_if_good(store):
        for spec in (spec for spec in specs if spec.start_from):
            check_start(spec, folder := store.folder(key_of(spec)))
            if not spec.model.custom:
                from workbench.model.held_out import load_part

                model = make_model(spec.model, spec.seed)
                check_start(spec, folder, model, load_part(spec, model, store.cache).digest)


@contextmanager
def _kept_if_good(store: Store) -> Iterator[None]:
    """Leave no tokens in the store that a check has made before it refused something."""
    cache = store.cache
    folders = [folder for folder in (cache, store.root) if not folder.exists()]
    there = {*cache.glob("*")}
    try:
        yield
    except ValueError:
        for path in {*cache.glob("*")} - there:
            path.unlink(missing_ok=True)
        for folder in folders:
            with suppress(OSError):
                folder.rmdir()
        raise


def _check_inputs(specs: list[RunSpec], store: Store) -> None:
    for spec in specs:
        if spec.start_from:
            paths_of(spec, store.folder("unknown") / "checkpoints")
    for spec in {_asked(spec): spec for spec in specs}.values():
        _check_data(spec, store.cache)
    if held := [s.held_out.with_(eval_every=0, eval_epochs=0) for s in specs if s.eval_text]:
        try:
            _check_inputs(held, store)
        except ValueError as error:
            raise ValueError(f"eval_text: {error}") from None


def _asked(spec: RunSpec) -> tuple[Any, ...]:
    """All that decides what is said of a spec's data."""
    model = spec.model if spec.model.family in PICTURED else replace(spec.model, layers=1)
    return spec.text, spec.tokenizer, spec.train_on, spec.cut_rows, _share(spec), model


def _share(spec: RunSpec) -> float:
    """Share of the text that is held out."""
    return spec.eval_share if spec.evaluates and not spec.eval_text else 0.0


def _check_data(spec: RunSpec, cache: Path) -> None:
    """Raise ValueError for data that cannot be, or is none of the model's. Rows and samples are
    read, also those that are held out; the data of a user's own module is left to the worker."""
    model, text = spec.model, spec.text
    if model.family in ANSWERING and is_folder(spec.tokenizer):
        from workbench.model.tokenizer_file import OfT5

        OfT5(spec.tokenizer)
    if model.decomposed:
        if text == DIGITS and not model.custom and model.family not in PICTURED:
            raise ValueError(f"text is {DIGITS!r}, which are pictures; {model.family} reads texts")
        if text not in BUNDLED and not user_path(text).exists():
            raise ValueError(f"there is nothing at {text!r}; name a file or a folder, or 'stdlib'")
        if model.family in PICTURED:
            make_model(model, spec.seed)  # which refuses sizes
        if not (model.custom or (text == STDLIB and _roomy(spec))):
            from workbench.model.held_out import load_part

            for held_out in (False, True)[: 1 + spec.evaluates]:
                load_part(spec, None, cache, held_out=held_out)
        return
    made = None
    if model.family != GPT_FAMILY:
        whole = spec_from_config(model.family, seq=model.seq)
        made = make_model(replace(whole, **{name: getattr(model, name) for name in OF_DECODERS}))
    if model.rows or text.lower().endswith(IDS) or _unsure(spec):
        from workbench.model.held_out import load_part

        load_part(spec, made or make_model(model), cache)


def _roomy(spec: RunSpec) -> bool:
    """Whether a model of a family reads ``stdlib`` for sure."""
    model, named = spec.model, spec.tokenizer.startswith((AS_BYTES, "bpe:"))
    roomy = named and model.seq >= ROOMY and model.vocab >= _words(spec.tokenizer) + ROOMY
    return roomy or model.family in PICTURED


def _unsure(spec: RunSpec) -> bool:
    """Whether only tokens tell if a text is long enough, and its tokenizer small enough for the
    model. Raises ValueError where neither could be, whatever the tokens are."""
    tokenizer, seq, vocab, share = spec.tokenizer, spec.model.seq, spec.model.vocab, _share(spec)
    words = _words(tokenizer)
    check_room(words if is_folder(tokenizer) else BYTES, tokenizer, vocab)
    if spec.text == STDLIB and not share:
        return words > vocab
    most = len(read_corpus(spec.text).data)
    kept = trained_on(most, seq, share) if share else seq * windows(most, seq)
    return words > vocab or (tokenizer != AS_BYTES and kept < LONGEST_TOKEN * seq)


def _words(tokenizer: str) -> int:
    """Tokens of a tokenizer, at most. Raises ValueError for one that cannot be."""
    if is_folder(tokenizer):
        from workbench.model.tokenizer_file import FromFile

        return FromFile(tokenizer).words
    return BYTES if tokenizer == AS_BYTES else bpe_size(tokenizer)


def check_weights(specs: list[RunSpec], store: Store) -> list[str]:
    """Lines that say from which weights the specs begin, where there could be some. Raises
    ValueError, one sentence, for weights that cannot be read, or are none of the model, as far as
    headers tell."""
    lines = []
    for model, seed, path, asked in dict.fromkeys(
        (spec.model, spec.seed, begins_from(spec, store.root), spec.weights == "random")
        for spec in specs
        if not spec.start_from
    ):
        if path:
            made = make_model(replace(model, pretrained=path), seed)
            stored = made.trained.check()
            lines.append(f"weights: {made.parameters_count():,} parameters from {stored.told}")
        elif file := config_file(model):
            why = f"whatever {file.parent} has" if asked else f"since {file.parent} has none"
            lines.append(f"weights: random, {why}")
    return [*lines, *dict.fromkeys(filter(None, map(_unlike_before, specs)))]


def _unlike_before(spec: RunSpec) -> str:
    """A line on a text that is read as bytes, while its weights come with a tokenizer."""
    known, folder = bool(spec.model.pretrained), user_path(spec.model.pretrained)
    read = known and not spec.model.rows and not spec.text.endswith(IDS)
    if not read or spec.tokenizer != AS_BYTES or not (folder / FILE).is_file():
        return ""
    return f"text: read as bytes; --tokenizer {folder} reads it as these weights know it"


def check_methods(specs: list[RunSpec]) -> None:
    """Raise ValueError for numbers that no plan of a method on ranks can take."""
    for spec in specs:
        possible(spec)


def check_modules(specs: list[RunSpec]) -> None:
    """Raise ValueError for a user's own module that cannot be made, or whose layers share what the
    method cannot share. For a process of its own: it imports torch and the module's file, which may
    change later."""
    for spec in specs:
        if spec.model.custom:
            made = make_model(spec.model, spec.seed)
            if methods.find(spec.method).driven == methods.PLANNED:
                made.check_shared()
