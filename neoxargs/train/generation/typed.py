"""Lines of standard input: prompts, and messages of a conversation."""

from __future__ import annotations

import sys
from io import TextIOWrapper


def next_line() -> str:
    """Return the next line of standard input, "" at its end, or if it is closed.

    Bytes that are no text in its encoding become U+FFFD: what stands for them otherwise could not be written.
    """
    if sys.stdin is None:
        return ""
    # Only before the first line: Python refuses it later.
    if isinstance(sys.stdin, TextIOWrapper) and sys.stdin.errors != "replace":
        sys.stdin.reconfigure(errors="replace")
    return sys.stdin.readline()
