"""Room for the tokens of a text: in a model's vocabulary, and in the text for one sample.

Commands ask before anything is tokenized, and without numpy.
"""

from __future__ import annotations

IDS = ".npy"
"""Ending of a file of token ids."""
BYTES = 256
"""Tokens of the tokenizer of bytes."""
MOST_TOKENS = 1 << 20
"""No tokenizer in use has half as many; the library takes memory for all of them at once."""


def bpe_size(tokenizer: str) -> int:
    """N of ``bpe:N``; raises ValueError for another name, and for an N below 257 or too large."""
    kind, _, number = tokenizer.partition(":")
    if kind != "bpe" or not number.isdecimal():
        raise ValueError(
            f"unknown tokenizer {tokenizer!r}; use 'bytes', 'bpe:N' as in 'bpe:4096', of pairs "
            "'wordpiece', or a folder with a tokenizer.json"
        )
    if len(number) > 7 or int(number) > MOST_TOKENS:
        raise ValueError(f"{tokenizer} has too many tokens; use an N of at most {MOST_TOKENS}")
    if int(number) <= BYTES:
        raise ValueError(
            f"{tokenizer} has no room for merges beside {BYTES} bytes; use N above {BYTES}"
        )
    return int(number)


def check_room(tokens: int, tokenizer: str, vocab: int) -> None:
    """Raise ValueError for a tokenizer whose texts have tokens that the model has not."""
    if tokens > vocab:
        raise ValueError(
            f"the model's vocabulary of {vocab} is smaller than the {tokens} tokens of "
            f"{tokenizer!r}; give the model's own tokenizer, or a model with at least so many"
        )


def windows(tokens: int, seq: int) -> int:
    """Samples of `seq` tokens, and one more as the last target, in so many. Raises ValueError for
    fewer than one."""
    count = (tokens - 1) // seq
    if count < 1:
        raise ValueError(
            f"the text has {tokens} tokens, too few for one sample of {seq}: it takes {seq + 1}"
        )
    return count


def trained_on(tokens: int, seq: int, share: float) -> int:
    """How many of the first tokens are trained on where a share is held out, a sample at least.
    Raises ValueError where either part has no sample."""
    kept = tokens - max(seq + 1, round(share * tokens))
    if kept <= seq:
        raise ValueError(
            f"the text has {tokens} tokens, too few to hold a sample of {seq} out and to train on "
            f"another one, with an eval_share of {share:g}; give a longer text, or less of both"
        )
    return kept
