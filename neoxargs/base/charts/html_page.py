"""The frame of an HTML page in one file: everything but its content."""

from __future__ import annotations

from html import escape

#: What every page begins with, by which an older page is recognised.
BEGINNING = "<!DOCTYPE html>"


def html_page(title: str, style: str, content: str) -> str:
    """Return the page. title: text; style: CSS; content: HTML."""
    return f"""{BEGINNING}
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{style}</style>
{content.strip()}
</html>
"""
