"""The docs site: `python -m sphinx -W docs site` renders this folder as static pages that also open from disk."""

import re
from pathlib import Path

from docutils import nodes

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
html_js_files = ["parameters.js"]
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


def setup(app):
    app.add_object_type("parameter", "parameter")
    app.connect("doctree-read", index_parameters)
