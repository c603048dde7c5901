"""Patterns of lines that are not YAML: a flag, a comment of another language, a colon without a space."""

from __future__ import annotations

import re

from neoxargs.base.problems import Edit, Place, Problem


def line_content(place: Place) -> Place:
    """Return the range of the line without its indentation and trailing spaces."""
    content = place.text.strip()
    return place._replace(column=place.text.index(content) + 1, width=len(content))


def is_conflict_mark(line: str) -> bool:
    """True for git's marker at the beginning of a merge conflict."""
    return bool(re.match(r"<{7}( |$)", line))


RUN_OUTPUT_HINT = (
    "pass the configuration files that the run was started with; GPT-NeoX saves a copy of them in the `configs` folder "
    "of each checkpoint"
)
_FOREIGN_SPACE = r"[\u00a0\u2000-\u200b\u202f\u3000\ufeff]"
#: The first that matches counts: a flag with `=` also looks like `key = value`, a comment with `//` like other text.
#: Problem id -> pattern of the line, what is wrong, hint. An empty hint becomes the line rewritten as `key: value`.
_PATTERNS: dict[str, tuple[str, str, str]] = {
    "yaml-git-conflict": (
        r"(<{7}|={7}|>{7}|\|{7})( .*)?$",
        "this is a git conflict marker",
        "keep one of the two versions and remove the markers",
    ),
    "yaml-markdown": (r"```", "this is a Markdown code fence, not YAML", "remove this line"),
    "yaml-foreign-comment": (r"(//|/\*)", "this is not a YAML comment", "begin comments with `#`"),
    "yaml-foreign-space": (
        f".*{_FOREIGN_SPACE}",
        "this line contains a space character that YAML does not recognise",
        "replace this character with an ordinary space",
    ),
    "yaml-foreign-colon": (
        r"(?P<key>[\w.-]+)\uff1a *(?P<value>.*)$",
        "the colon in this line is a full-width colon (U+FF1A), not `:`",
        "",
    ),
    "yaml-printed-output": (
        # Megatron and GPT-NeoX print their arguments between lines of `-` as `name ........ value`.
        r"(-{4,} *\w+ *-{4,}$|\w+ \.{3,})",
        "this is the output of a run, not its configuration",
        RUN_OUTPUT_HINT,
    ),
    "yaml-flag": (
        r"--(?P<key>[A-Za-z][\w-]*)[ =](?P<value>\S.*)$",
        "this is a command-line flag, not `key: value`",
        "",
    ),
    "yaml-equals-sign": (
        r"(export )?(?P<key>[\w.-]+) *= *(?P<value>\S.*)$",
        "expected `: ` after the key, got `=`",
        "",
    ),
    "yaml-no-space-after-colon": (
        r"(?P<key>[\"']?[\w.-]+[\"']?):(?P<value>[^\s:].*)$",
        "a space is missing after the colon",
        "",
    ),
    "yaml-brace-after-keys": (
        r"\{",
        "a `{` cannot follow `key: value` lines",
        "remove the outer braces, or put everything into one pair of `{ }`",
    ),
}


#: Values of at least this length are not repeated in a hint.
MAX_QUOTED = 80
ELLIPSIS_HINT = "fill in the omitted part, or remove the `...`"


def line_problem(line: Place) -> Problem | None:
    """Return the problem of a line that matches one of the patterns, else None."""
    line = line_content(line)
    content = line.text.strip()
    for problem_id, (look, what, hint) in _PATTERNS.items():
        if match := re.match(look, content):
            parts = match.groupdict()
            value = parts.get("value", "").rstrip(",;")
            edits = _edits(problem_id, line, parts.get("key", ""), value)
            hint = hint or f"write `{parts['key']}: {value if len(value) < MAX_QUOTED else '…'}`"
            return Problem(what, line, hint, id=problem_id, edits=edits)
    return None


def _edits(problem_id: str, line: Place, key: str, value: str) -> tuple[Edit, ...]:
    """Return the edit of a line with a mistake that has one meaning."""
    content = line.written
    if problem_id == "yaml-foreign-comment" and content.startswith("//"):
        return (Edit(line._replace(width=2), "replace", "#"),)
    if problem_id == "yaml-foreign-space":
        return (Edit(line, "replace", re.sub(_FOREIGN_SPACE, " ", content)),)
    is_one_pair = key and not re.search(r"=|: |\s--", re.sub(r"\s#.*", "", value))
    return (Edit(line, "replace", f"{key}: {value}"),) if is_one_pair else ()
