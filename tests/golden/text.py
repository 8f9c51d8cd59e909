"""A text for the GPT, the same on every machine: the standard library's source differs between interpreters."""

from __future__ import annotations

WORDS = "the a rank shard gather scatter of and sum ring sends holds moment weight step is".split()
SIZE = 4000  # bytes


def pseudo_text() -> bytes:
    """SIZE bytes of ASCII: words and full stops, picked by the linear congruential generator of the C standard."""
    text, state = "", 1
    while len(text) < SIZE:
        state = (1103515245 * state + 12345) % 2**31
        text += WORDS[(state >> 16) % len(WORDS)] + (".\n" if (state >> 20) % 8 == 0 else " ")
    return text[:SIZE].encode("ascii")
