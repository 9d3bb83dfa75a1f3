"""A run's input files, seen to be usable before anything is written or started. Imports torch for
Hugging Face configurations only, and numpy for what is read here.

A worker refuses them as well, since they may change; by then the run has a folder and a record.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from workbench.core import methods
from workbench.core.model_spec import ANSWERING, GPT_FAMILY, OF_DECODERS, PICTURED
from workbench.core.paths import user_path
from workbench.core.sources import config_file
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.model.corpus import BUNDLED, DIGITS, STDLIB, read_corpus
from workbench.model.hf_config import spec_from_config
from workbench.model.room import BYTES, IDS, bpe_size, check_room, windows
from workbench.model.tokenizer_folder import AS_BYTES, FILE, is_folder
from workbench.runs.chosen import possible
from workbench.runs.resolve import begins_from
from workbench.runs.store import Store


def check_inputs(specs: list[RunSpec], store: Store) -> None:
    """Raise ValueError for a model, a text, a tokenizer or a run to start from that is not there or
    cannot be used, as far as that shows without tokenizing a text. Each is read once; tokens of
    rows, which are long in the making, are kept in the store for its runs, unless something is
    refused."""
    cache = store.cache
    folders = [folder for folder in (cache, store.root) if not folder.exists()]
    there = {*cache.glob("*")}
    try:
        _check_inputs(specs, store)
    except ValueError:
        for path in {*cache.glob("*")} - there:
            path.unlink(missing_ok=True)
        for folder in folders:
            with suppress(OSError):
                folder.rmdir()
        raise


def _check_inputs(specs: list[RunSpec], store: Store) -> None:
    for start in {spec.start_from for spec in specs} - {""}:
        run = user_path(start) if user_path(start).is_dir() else store.folder(start)
        if not run.is_dir():
            raise ValueError(
                f"start_from is {start!r}; there is no such folder, and no run of that key in "
                f"{store.runs}"
            )
        if not (run / "checkpoints").is_dir():
            raise ValueError(f"start_from is {start!r}; there are no checkpoints in {run}")
    alike = [
        (spec.text, spec.tokenizer, replace(spec.model, layers=1), spec.evaluates) for spec in specs
    ]
    for text, tokenizer, model, evaluates in dict.fromkeys(alike):
        if model.family in ANSWERING and is_folder(tokenizer):
            from workbench.model.tokenizer_file import OfT5

            OfT5(tokenizer)
        if model.rows:
            continue
        if not model.decomposed:
            if model.family != GPT_FAMILY:
                whole = spec_from_config(model.family, seq=model.seq)
                make_model(replace(whole, attention=model.attention))
            _check_text(text, tokenizer, vocab=model.vocab, seq=model.seq)
        elif text == DIGITS and not model.custom and model.family not in PICTURED:
            raise ValueError(f"text is {DIGITS!r}, which are pictures; {model.family} reads texts")
        elif text not in BUNDLED and not user_path(text).exists():
            raise ValueError(f"there is nothing at {text!r}; name a file or a folder, or 'stdlib'")
        elif text not in BUNDLED and model.family in PICTURED:
            from workbench.model.cifar import cifar_at, read_cifar

            if at := cifar_at(user_path(text)):
                read_cifar(*at)
        elif text != STDLIB and model.family == "bert":
            from workbench.model.pairs import holds_out, load_pairs

            for held_out in (False, True)[: 1 + (evaluates and holds_out(text))]:
                load_pairs(
                    text, tokenizer, vocab=model.vocab, seq=model.seq, seed=0, held_out=held_out
                )
        elif text != STDLIB and model.family in ANSWERING:
            from workbench.model.answers import load_answers

            load_answers(text, tokenizer, vocab=model.vocab, seq=model.seq, target_seq=2, seed=0)
    _check_rows([spec for spec in specs if spec.model.rows], store.cache)
    if held := [spec.held_out for spec in specs if spec.eval_text]:
        try:
            _check_inputs(held, store)
        except ValueError as error:
            raise ValueError(f"eval_text: {error}") from None


def _check_text(source: str, tokenizer: str, *, vocab: int, seq: int) -> None:
    """Raise ValueError for all that `load_text` refuses and that shows without tokenizing."""
    if source.lower().endswith(IDS):
        from workbench.model.text import load_text

        load_text(source, vocab=vocab, seq=seq)
        return
    if is_folder(tokenizer):
        from workbench.model.tokenizer_file import FromFile

        check_room(FromFile(tokenizer).words, tokenizer, vocab)
    else:
        if tokenizer != AS_BYTES:
            bpe_size(tokenizer)
        check_room(BYTES, tokenizer, vocab)
    if source != STDLIB:
        windows(len(read_corpus(source).data), seq)


def _check_rows(specs: list[RunSpec], cache: Path) -> None:
    """Raise ValueError for rows that cannot be, and for a decoder that does not train on them. They
    are tokenized: only then is it known how long they are."""
    seen = set()
    for spec in specs:
        asked = (spec.text, spec.tokenizer, spec.train_on, spec.cut_rows, spec.model)
        if asked not in seen:
            seen.add(asked)
            whole = spec_from_config(spec.model.family, seq=spec.model.seq)
            own = {name: getattr(spec.model, name) for name in OF_DECODERS}
            make_model(replace(whole, **own))
            from workbench.model.row_samples import read_samples

            read_samples(spec, spec.model.vocab, cache)


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
    """Raise ValueError for a user's own module whose layers share what the method cannot share. For
    a process of its own: it imports torch and the module's file, which may change later."""
    for spec in specs:
        if spec.model.custom and methods.find(spec.method).driven == methods.PLANNED:
            make_model(spec.model, spec.seed).check_shared()
