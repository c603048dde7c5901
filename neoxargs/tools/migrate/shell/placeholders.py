"""Placeholders: what published scripts have where each person writes a value, as `<Specify path>` or `/path/to/data`.

A shell takes the `<` of one for a redirection, and its words for several; here it is one part of one word.
"""

from __future__ import annotations

import re

# All lengths are bounded, so that no text takes long.
#: `<Specify path>` as it stands in a script. A redirection has a space before the next `>`, or a stream's number.
_ANGLE = r"<(?=[\w./~*+-])(?!/dev/)(?:[^<>\n|;&\"'`$]|(?<=\w)'(?=\w)){1,200}(?<!\s)(?<!\s\d)>"
#: `[your path]`, `{path to data}`: with the bracket at the word, as neither a test nor a group of commands has it.
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
    """Does a word stand for what a person is to write?"""
    return bool(_IN_WORD.search(word))


def placeholder_at(script: str, at: int) -> str:
    """The placeholder in brackets that begins at this point of a script; empty if none does."""
    match = _IN_SCRIPT.match(script, at) if script[at] in "<[{" else None
    return match[0] if match else ""
