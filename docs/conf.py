"""The docs site: `python -m sphinx -W docs site` renders this folder as static pages that also open from disk."""

import re
import sys
from pathlib import Path

from docutils import nodes

sys.path.insert(0, str(Path(__file__).parents[1]))
from neoxargs.base.files import Text
from neoxargs.base.problems import render
from neoxargs.commands.explain.catalogue import catalogue
from neoxargs.commands.explain.example import GPUS, NAME
from neoxargs.commands.explain.problem import about_of, problems_of
from neoxargs.registry import REGISTRY
from neoxargs.resolve.yaml.edit import corrected

project = "deepy"
extensions = ["myst_parser"]
myst_heading_anchors = 3
# MyST does not see the anchors of parameters.md, which are HTML; tests/test_site.py follows every link instead.
suppress_warnings = ["myst.xref_missing"]
smartquotes = False
highlight_language = "text"

html_theme = "furo"
html_title = "deepy"
html_static_path = ["_static"]
html_css_files = ["deepy.css"]
html_js_files = ["parameters.js", "playground.js"]
html_search_scorer = str(Path(__file__).with_name("_static") / "scorer.js")
html_copy_source = False
html_show_copyright = False
html_use_index = False


def index_parameters(app, doctree):
    """Give the search of the site every name in the tables of parameters, with the anchor of its row."""
    if app.env.docname == "parameters":
        for raw in doctree.findall(nodes.raw):
            for anchor in re.findall('<a id="([^"]+)"', raw.astext()):
                app.env.get_domain("std").note_object("parameter", anchor, anchor, location=raw)


def write_problem_pages(app):
    """Write a page for each problem that `deepy explain` describes, and their list, to docs/problems (not in git)."""
    folder = Path(app.srcdir, "problems")
    folder.mkdir(exist_ok=True)
    pages = {f"{name}.md": problem_page(name, entry) for name, entry in catalogue().items()}
    listed = [f"- [{name}]({name}.md): {first_sentence(entry)}" for name, entry in sorted(catalogue().items())]
    head = "# Problems\n\nWhat the commands report, by id, and why. `deepy explain ID` prints the same.\n\n"
    pages["index.md"] = head + "\n".join([*listed, ""])
    for old in {path.name for path in folder.glob("*.md")} - set(pages):
        (folder / old).unlink()
    for name, text in pages.items():
        if not (folder / name).exists() or (folder / name).read_text(encoding="utf-8") != text:
            (folder / name).write_text(text, encoding="utf-8")


def problem_page(name, entry):
    """The page of a problem: why it is reported, an example, what check says of it, and the corrected example."""
    found = problems_of(entry.example, name)
    lines = ["---", "orphan: true", "---", f"# {name}", "", linked(entry.protects_from), ""]
    known = [each for each in about_of(entry, found) if each in REGISTRY.parameters]
    if known:
        lines += ["About: " + ", ".join(f"[{each}](../parameters.md#{each})" for each in known), ""]
    language = "text" if name.startswith("yaml-") else "yaml"  # those are examples of what is no YAML
    if entry.example:
        sets = "".join(f" --set '{override}'" for override in entry.example.overrides)
        gpus = "" if entry.example.files else f" --gpus {GPUS}"
        lines += [f"In `{NAME}`, with the rest of a model in `model.yml`:", "", *block(language, entry.example.config)]
        lines += [
            line for file in entry.example.files.items() for line in (f"`{file[0]}`:", "", *block("text", file[1]))
        ]
        lines += [*block("console", f"$ deepy check {NAME} model.yml{gpus}{sets}\n{render(found)}")]
        if edits := [edit for each in found for edit in each.edits if edit.where.file == NAME]:
            right = corrected(Text(NAME, entry.example.config), edits).text
            lines += ["`deepy check --fix` writes:", "", *block(language, right)]
    return "\n".join([*lines, "All problems: [index](index.md).", ""])


def first_sentence(entry):
    return linked(re.split(r"(?<=[.:]) ", entry.protects_from)[0])


def linked(text):
    """Text of a docstring as Markdown: its addresses are links, and its placeholders no HTML."""
    return re.sub(r"(?<![(<])https?://[^\s,)]+", r"<\g<0>>", text.replace("<", "\\<"))


def block(language, text):
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return [f"{fence}{language}", text.rstrip("\n"), fence, ""]


def setup(app):
    app.connect("builder-inited", write_problem_pages)
    app.add_object_type("parameter", "parameter")
    app.connect("doctree-read", index_parameters)
