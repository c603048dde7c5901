"""Placeholders of published scripts, such as `<Specify path>` or `/path/to/data`, which each user replaces by a value.

A shell would read `<` as a redirection and split the words; this reader keeps a placeholder as part of one word.
"""

from __future__ import annotations

import re

# All repetitions are bounded, to avoid quadratic time on long lines.
#: `<Specify path>`, but not a redirection, which has a space or a stream number before the next `>`.
_ANGLE = r"<(?=[\w./~*+-])(?!/dev/)(?:[^<>\n|;&\"'`$]|(?<=\w)'(?=\w)){1,200}(?<!\s)(?<!\s\d)>"
#: `[your path]`, `{path to data}`: no space after the bracket, unlike a test `[ x ]` or a group `{ a; }`.
_SQUARE = r"(?<!\w)\[(?=[^\W\d_])[^\[\]{}<>\n|;&\"'`$]{1,200}\]"
_CURLY = r"(?<![$\w])\{(?=[^\W\d_])[^\[\]{}<>\n|;&\"'`$,]{1,200}\}"
_TEMPLATE = r"\{\{[^{}\n]{1,200}\}\}"
_IN_SCRIPT = re.compile(f"{_ANGLE}|{_SQUARE}|{_CURLY}|{_TEMPLATE}")

_IN_WORD = re.compile(
    r"""
    <[^<>]{1,200}>                                            # <Specify path>, <...>
    | \[ (?: \.{3} | (?=[^]]{0,200}[^\W\d_]{3}) [^][,"'$*]{1,200} ) \]   # [your path], but not [0]*1 or [a-z]*
    | (?<!\$) \{\{?\s{0,9} (?: \.{3} | [^\W\d_][\w\s./-]{0,200} ) \}   # {path}, {{ path }}
    | (?<![a-z]) your (?![a-z])                               # YOUR_PATH, /your/path
    | (?<![a-z]) path[-_/ ]?to (?![a-z])                      # /path/to/data, PATH_TO_DATA
    | (?<![a-z]) (?: change | replace | fill ) [-_ ]? me (?![a-z])
    | (?<![a-z]) (?: todo | tbd | fixme ) (?![a-z])
    | [-_ ] here $                                            # DATA_PATH_HERE
    | (?<![a-z0-9]) x{3,} (?![a-z0-9])                        # xxx
    | (?: ^ | / ) (?: \.{3} | … ) (?: / | $ )                 # ..., /.../data
    """,
    re.VERBOSE | re.IGNORECASE,
)


def is_placeholder(word: str) -> bool:
    """Return whether a word has a placeholder in it."""
    return bool(_IN_WORD.search(word))


def placeholder_at(script: str, at: int) -> str:
    """Return the bracketed placeholder that begins at this index of a script; empty if there is none."""
    match = _IN_SCRIPT.match(script, at) if script[at] in "<[{" else None
    return match[0] if match else ""
