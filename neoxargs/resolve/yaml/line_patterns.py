"""Lines that are no YAML, each by its look: a flag, a comment of another language, a colon without its space."""

from __future__ import annotations

import re

from neoxargs.problems import Place, Problem


def whole(place: Place) -> Place:
    """The content of the line that a place is on."""
    content = place.text.strip()
    return place._replace(column=place.text.index(content) + 1, width=len(content))


def conflict(line: str) -> bool:
    """Does git mark here where two versions begin to differ?"""
    return bool(re.match(r"<{7}( |$)", line))


PRINTED = "name the files that the run was started with; a checkpoint of GPT-NeoX has them in its folder configs"
#: How a line begins (or is), what it is, and what to do; without the last, it is written anew as `key: value`.
_LOOKS: tuple[tuple[str, str, str], ...] = (
    (r"(<{7}|={7}|>{7}|\|{7})( .*)?$", "git left this mark where two versions conflict", "keep one of the two"),
    (r"```", "this is a mark of Markdown, not of YAML", "take the line out"),
    (r"(//|/\*)", "this begins no comment in YAML", "begin comments with `#`"),
    (r".*[\u00a0\u2000-\u200b\u202f\u3000\ufeff]", "a space in this line is none that YAML knows", "type it anew"),
    (r"(?P<key>[\w.-]+)\uff1a *(?P<value>.*)$", "this colon is none that YAML knows", ""),
    (r"(-{4,} *\w+ *-{4,}$|\w+ \.{3,})", "this is what a run printed, not its configuration", PRINTED),
    (r"--(?P<key>[A-Za-z][\w-]*)[ =](?P<value>\S.*)$", "this is a flag, not `key: value`", ""),
    (r"(export )?(?P<key>[\w.-]+) *= *(?P<value>\S.*)$", "an `=` stands where YAML has `: `", ""),
    (r"(?P<key>[\"']?[\w.-]+[\"']?):(?P<value>[^\s:].*)$", "a space is missing behind the colon", ""),
    (r"\{", "a `{` cannot follow lines of `key: value`", "take the outer braces out, or put everything into one pair"),
)


#: What is longer than this is not written out again.
LONG = 80
LEFT_OUT = "write what was left out here, or take the `...` out"


def looked_at(line: Place) -> Problem | None:
    """What a line is that should be `key: value`, where it looks like something known."""
    line = whole(line)
    content = line.text.strip()
    for look, what, hint in _LOOKS:
        if match := re.match(look, content):
            said = match.groupdict()
            value = said.get("value", "").rstrip(",;")
            return Problem(what, line, hint or f"write `{said['key']}: {value if len(value) < LONG else '…'}`")
    return None
