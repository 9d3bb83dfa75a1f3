"""How near an answer is to a reference: SQuAD's exact match and F1 (Rajpurkar et al., EMNLP 2016).

Both compare words alone: in lower case, without punctuation and without English articles.
"""

from __future__ import annotations

import re
import string
from collections import Counter

ARTICLES = frozenset({"a", "an", "the"})
PUNCTUATION = re.compile(f"[{re.escape(string.punctuation)}]")


def words(text: str) -> list[str]:
    """Words that count.

    >>> words("The cat's  mat.")
    ['cats', 'mat']
    """
    return [word for word in PUNCTUATION.sub("", text.lower()).split() if word not in ARTICLES]


def exact(answer: str, reference: str) -> float:
    """1 where both have the same words in the same order, else 0."""
    return float(words(answer) == words(reference))


def f1(answer: str, reference: str) -> float:
    """Harmonic mean of precision and recall of the answer's words; of no words at all 1 where
    neither has any.

    >>> round(f1("a red hat", "the red coat"), 2)
    0.5
    """
    ours, theirs = words(answer), words(reference)
    if not ours or not theirs:
        return float(ours == theirs)
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))
