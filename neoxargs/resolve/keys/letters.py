"""Keys with invalid characters, and keys that are used as comments."""

from __future__ import annotations

import re

from neoxargs.registry import REGISTRY, normal
from neoxargs.resolve.keys.match import Key, Match, is_known
from neoxargs.resolve.yaml.line_patterns import ELLIPSIS_HINT


def wrong_letters(key: Key) -> Match | None:
    """Match a comment, `...`, `key:value` without a space, `key = value`, or a key with invalid characters."""
    hint = _hint(key.written)
    meant = _without_odd(re.split("[:=]", key.name)[0])
    return Match("letters", hint, (meant,) if REGISTRY.find(meant) else ()) if hint else None


def is_comment(key: str) -> bool:
    """True for a key that stands for a comment, as in JSON, which has no comments."""
    # `// text`, `_comment`, `#note`, `remarks_2`
    return bool(re.fullmatch(r"//.*|[_#$]*(comment|note|remark)s?([_\d].*)?", key, re.I)) and not is_known(normal(key))


def _hint(written: str) -> str:
    if is_comment(written):
        return "write the comment after `#`, not as a key"
    if re.fullmatch(r"\.\.+|…", written):
        return ELLIPSIS_HINT
    return _hint_for_pair(written) or _hint_for_odd_letters(written)


def _hint_for_pair(written: str) -> str:
    """Return the hint for a key and its value that are read as one key: `key:value` or `key = value`."""
    pair = re.fullmatch(r"([\w-]+)(:|\s*=\s*)(\S.*)", written)
    if not pair:
        return ""
    key, sign, value = pair.groups()
    if sign == ":":
        return f"a space is missing after the colon: write `{key}: {value}`"
    return f"write `{key}: {value}`, with a colon instead of `=`"


def _hint_for_odd_letters(written: str) -> str:
    clean = _without_odd(written)
    if clean == written or not re.fullmatch(r"[\w.-]+", clean):
        return ""
    first = re.split(r"[^\w.-]", written)[0].rstrip(".")
    if not is_known(normal(clean)) and is_known(normal(first)):  # `attention_config[0]`, `lora.*`
        return f"did you mean {first}?"
    return f"write `{clean}` without the {' and '.join(_odd_letters(written))}"


def _odd_letters(written: str) -> list[str]:
    """Return the characters that are not allowed in keys; invisible ones by code point."""
    odd = dict.fromkeys(letter for letter in written if not re.match(r"[\w.-]", letter))
    names = {letter: f"`{letter}`" if letter.isprintable() else f"U+{ord(letter):04X}" for letter in odd}
    return ["space" if letter == " " else name for letter, name in names.items()]


def _without_odd(written: str) -> str:
    return re.sub(r"[^\w.-]", "", written)
