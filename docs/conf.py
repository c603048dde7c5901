"""The docs site: `python -m sphinx -W docs site` renders this folder as static pages that also open from disk."""

project = "deepy"
extensions = ["myst_parser"]
myst_heading_anchors = 3
# MyST does not see the anchors of parameters.md, which are HTML; tests/tools/test_site.py follows every link instead.
suppress_warnings = ["myst.xref_missing"]
smartquotes = False
highlight_language = "text"

html_theme = "furo"
html_title = "deepy"
html_static_path = ["_static"]
html_css_files = ["deepy.css"]
html_js_files = ["parameters.js"]
html_copy_source = False
html_show_copyright = False
html_use_index = False
