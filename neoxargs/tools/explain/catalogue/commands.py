"""Command lines, and what the verbs beside `check` find."""

from __future__ import annotations

from neoxargs.tools.explain.catalogue.entry import Entry, row

PROBLEMS: dict[str, Entry] = {
    "explain-needs-a-name": row(
        "`explain` wants to know what to explain before the files that it is explained for; a file stands in its place."
    ),
}
