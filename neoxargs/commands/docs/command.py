"""`deepy docs`: write the generated files; `--check` and a test report the stale ones.

`FILES` lists them. docs/effects.md is not one of them: the tests write it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from neoxargs.base.files import Text
from neoxargs.base.problems import Place, Problem, Problems
from neoxargs.base.shipped import IMPORT_ROOT as ROOT
from neoxargs.base.shipped import IS_CHECKOUT
from neoxargs.base.write_files import write_all
from neoxargs.commands.docs import groups, guides, model_page, parameters, schema


class Generated(NamedTuple):
    """A generated file, or a page with generated parts."""

    path: str
    """Relative to the root of the repository."""
    text: Callable[[], str]
    """Returns the up-to-date content."""
    for_users: bool = False
    """Whether `-o DIR` writes this file too, for users of plugins or of an installed deepy."""


FILES = (
    Generated("docs/parameters.md", parameters.page, for_users=True),
    Generated("docs/neoxargs.schema.json", schema.schema_text, for_users=True),
    Generated("neoxargs/config/groups.py", groups.source),
    Generated("docs/model.md", partial(model_page.page, ROOT)),
    *(Generated(f"docs/{name}.md", partial(guides.page, ROOT, name)) for name in guides.PAGES),
)


def write_docs(check: bool = False, directory: str | None = None) -> list[str]:
    """Write the stale generated files and return their paths. check: do not write.

    directory: write the files for users there, instead of all files to the repository. Raises Problems if a file
    cannot be written.
    """
    if directory is None and not IS_CHECKOUT:
        what = "deepy docs updates files in a checkout of deepy, but deepy is running from an installed package"
        hint = "add -o DIR to write the files to another folder"
        raise Problems([Problem(what, hint=hint, id="docs-need-output-folder")])
    files = [file for file in FILES if file.for_users or directory is None]
    stale: dict[str, Text] = {}
    with ThreadPoolExecutor() as pool:  # guides spend their time in subprocesses
        for file, text in zip(files, pool.map(lambda file: file.text(), files), strict=True):
            present = ROOT / file.path if directory is None else Path(directory, Path(file.path).name)
            if not present.exists() or present.read_text(encoding="utf-8") != text:
                stale[file.path if directory is None else str(present)] = Text(str(present), text)
    if stale and not check:
        folder = Path(directory or ROOT)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"this folder cannot be created: {(error.strerror or str(error)).lower()}"
            raise Problems([Problem(what, Place(str(folder), 0, 0), id="output-folder-unwritable")]) from None
        write_all(list(stale.values()))
    return list(stale)
