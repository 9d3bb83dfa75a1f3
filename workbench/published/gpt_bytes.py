"""Bytes that the units of our GPT need on this project's runtime, by formula.

A plan for a machine by its name is asked for while somebody moves a slider, and imports no torch.
So these formulas say what profile/footprint.py counts and GPUs measure (benchmarks/counted.py): in
tensors of the residual stream [B, S, H], matrices [H, H], and chunks of logits (model/loss.py).
"""

from __future__ import annotations

from workbench.core.model_spec import ModelSpec
from workbench.profile.unit_costs import SORTED, SORTED_ABOVE

CHUNK_BYTES, ALIGNED = 128 << 20, 64
"""Most bytes of logits that are there at a time; rows and columns come in multiples of so many."""
ADDED_UP_BYTES = 128 << 20
"""Most bytes of partial sums."""


def gpt_bytes(
    model: ModelSpec, microbatch: int, value_bytes: int, *, gpu: bool, compiled: bool
) -> dict[str, dict[str, int]]:
    """Fields of UnitCost that end in ``_bytes``, by kind of unit, for `microbatch` samples of so
    many bytes a value; blocks may be `compiled`, on a `gpu`."""
    tokens, hidden = microbatch * model.seq, model.hidden
    residual = tokens * hidden * value_bytes
    matrix = hidden * hidden * value_bytes
    words, positions = (n * hidden * value_bytes for n in (model.vocab, model.seq))
    sums = round(SORTED * tokens * hidden * 4) if gpu and tokens > SORTED_ABOVE else 0
    # The widest moment of a backward pass: at the second matrix of the feed-forward part, or at
    # its first. All gradients of the block, 12 matrices, have memory of their own.
    widest = 4 * residual + 4 * matrix
    if gpu and not compiled:
        later = 8 * matrix - 3 * residual + _added_up(tokens, 4 * hidden)
        widest = max(widest + _added_up(tokens, hidden), later)
    chunk = _chunk(tokens, model.vocab, value_bytes)
    return {
        "embedding": {
            "input_bytes": tokens * 8,
            "output_bytes": residual,
            "forward_scratch_bytes": residual + positions,
            "recompute_scratch_bytes": 2 * residual + positions,
            "backward_scratch_bytes": residual + words + sums,
        },
        "block": {
            "input_bytes": residual,
            "output_bytes": residual,
            "kept_bytes": 15 * residual + 4 * tokens * model.heads,
            "forward_scratch_bytes": (5 if compiled else 10) * residual,
            "recompute_scratch_bytes": (1 if compiled else 2) * residual,
            "backward_scratch_bytes": widest - 12 * matrix,
        },
        "head": {
            "input_bytes": residual,
            "output_bytes": 0,
            "kept_bytes": residual + words,
            "forward_scratch_bytes": residual + chunk,
            "recompute_scratch_bytes": residual + chunk,
            "backward_scratch_bytes": -residual,
        },
    }


def _added_up(tokens: int, outputs: int) -> int:
    """Bytes in which a GPU adds up the gradient of a bias over all tokens, outside of a compiled
    block. Fitted to what an H200 took."""
    return min(8 * tokens * outputs, ADDED_UP_BYTES)


def _chunk(tokens: int, vocab: int, value_bytes: int) -> int:
    """Bytes of the logits that are there at a time."""
    columns = -(-vocab // ALIGNED) * ALIGNED
    most = max(ALIGNED, CHUNK_BYTES // (columns * value_bytes) // ALIGNED * ALIGNED)
    rows = -(-tokens // max(1, -(-tokens // most)))
    return min(tokens, -(-rows // ALIGNED) * ALIGNED) * columns * value_bytes
