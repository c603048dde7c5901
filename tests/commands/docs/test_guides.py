"""Guides are updated by running their commands; the commands of the quick start are those of the README."""

from __future__ import annotations

from pathlib import Path

from neoxargs.commands.docs.guides import page
from tests.support.readme import QUICK_START, README, blocks

GUIDE = """\
Before.

```yaml my.yml
num_layers: 0
```

```console
$ python deepy.py check my.yml
ok
```

```yaml my.yml =
```

```sh
rm -r everything
```
"""


def test_files_are_written_and_outputs_inserted(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "guide.md").write_text(GUIDE)
    (tmp_path / "deepy.py").write_text("import sys\nprint(sys.argv[1:], open('my.yml').read(), file=sys.stderr)")
    updated = page(tmp_path, "guide")
    assert "$ python deepy.py check my.yml\n['check', 'my.yml'] num_layers: 0\n" in updated
    assert "```yaml my.yml =\nnum_layers: 0\n```" in updated
    assert updated.startswith("Before.\n\n```yaml my.yml\nnum_layers: 0\n```")
    assert updated.endswith("```sh\nrm -r everything\n```\n")


def test_the_quick_start_begins_with_the_commands_of_the_readme() -> None:
    assert blocks(QUICK_START)[0] == blocks(README)[0]
