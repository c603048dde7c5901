"""Everything generated that needs no test run: `deepy docs` writes it, `--check` and a test name what is stale.

A further generated file is a row of `FILES`. docs/effects.md is none: only the tests know what they have shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from neoxargs.problems import Place, Problem, Problems
from neoxargs.resolve import Text
from neoxargs.shipped import IMPORT_ROOT as ROOT
from neoxargs.shipped import IS_CHECKOUT
from neoxargs.tools.docs import groups, guides, parameters, schema
from neoxargs.tools.write import write_all


class Generated(NamedTuple):
    """A file that nobody edits, or a page of which nobody edits a part."""

    path: str
    """From the root of the repository."""
    text: Callable[[], str]
    """What should be in it."""
    of_plugins_too: bool = False
    """Worth writing elsewhere (`-o DIR`), with what plugins declare or where deepy is installed."""


FILES = (
    Generated("docs/parameters.md", parameters.page, of_plugins_too=True),
    Generated("docs/neoxargs.schema.json", schema.text, of_plugins_too=True),
    Generated("neoxargs/resolve/groups.py", groups.source),
    *(Generated(f"docs/{name}.md", partial(guides.page, ROOT, name)) for name in guides.PAGES),
)


def write_docs(check: bool = False, directory: str | None = None) -> list[str]:
    """Bring the generated files up to date; with `check` only look. Returns the paths of those that were stale.

    directory: where to write instead of the repository those of general interest. Raises Problems where a file cannot
    be written.
    """
    if directory is None and not IS_CHECKOUT:
        raise Problems([Problem("this is an installed package, without docs/", hint="add -o DIR", id="docs-not-here")])
    stale = list(_stale(directory))
    if stale and not check:
        _make(Path(directory or ROOT))
        write_all([Text(_absolute(path, directory), text) for path, text in stale])
    return [path for path, _ in stale]


def _stale(directory: str | None) -> Iterator[Text]:
    files = [file for file in FILES if file.of_plugins_too or directory is None]
    with ThreadPoolExecutor() as pool:  # a guide waits for the commands in it
        texts = pool.map(lambda file: file.text(), files)
        for file, text in zip(files, texts, strict=True):
            path = file.path if directory is None else str(Path(directory) / Path(file.path).name)
            if _content(Path(_absolute(path, directory))) != text:
                yield Text(path, text)


def _absolute(path: str, directory: str | None) -> str:
    return path if directory is not None else str(ROOT / path)


def _content(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"this folder cannot be made: {(error.strerror or str(error)).lower()}"
        raise Problems([Problem(what, Place(str(directory), 0, 0), id="output-folder-unwritable")]) from None
