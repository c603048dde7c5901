"""The docs site: it builds without a warning, needs no network, has no dead link, and filters its parameters."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from neoxargs.registry import REGISTRY
from tests.support.browser import CHROMIUM, Page, browser
from tests.support.paths import DOCS, ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("furo") is None or importlib.util.find_spec("myst_parser") is None:
        pytest.skip("the site's generator is not installed: pip install -c constraints.txt -e '.[docs]'")
    made = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "docs", str(made)],
        cwd=ROOT, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return made


class Links(HTMLParser):
    """What a page fetches, where it leads, and which anchors it has."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.anchors: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors += [found["id"]] if "id" in found else []
        self.fetched += [found["src"]] if "src" in found else []
        if "href" in found:
            (self.links if tag == "a" else self.fetched).append(found["href"])


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    return {page: Links(page) for page in sorted(site.glob("*.html"))}


def test_nothing_is_fetched_from_elsewhere(site: Path, pages: dict[Path, Links]) -> None:
    for page, found in pages.items():
        for address in found.fetched:
            parts = urlsplit(address)
            assert not parts.scheme and not parts.netloc, (page.name, address)
            assert (site / parts.path).exists(), (page.name, address)
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_every_link_leads_somewhere(site: Path, pages: dict[Path, Links]) -> None:
    for page, found in pages.items():
        for link in found.links:
            parts = urlsplit(link)
            if parts.scheme or not link:
                continue
            target = site / unquote(parts.path) if parts.path else page
            assert target.exists(), (page.name, link)
            if parts.fragment and "=" not in parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].anchors, (page.name, link)


def test_every_parameter_has_its_anchor_once(site: Path, pages: dict[Path, Links]) -> None:
    anchors = pages[site / "parameters.html"].anchors
    assert len(anchors) == len(set(anchors))
    assert set(REGISTRY.parameters) <= set(anchors)


def test_every_page_is_in_the_navigation(site: Path, pages: dict[Path, Links]) -> None:
    listed = {urlsplit(link).path for link in pages[site / "index.html"].links}
    assert {path.stem for path in DOCS.glob("*.md")} - {"index"} <= {Path(path).stem for path in listed}


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if CHROMIUM is None:
        pytest.skip("no Chromium to look at the site with")
    with browser(tmp_path_factory.mktemp("profile")) as page:
        page.size(1280, 900)
        yield page


@pytest.fixture
def table(site: Path, window: Page) -> Page:
    window.open((site / "parameters.html").as_uri())
    return window


def shown(page: Page) -> list[str]:
    """The names in the rows that are seen."""
    seen: list[str] = page.value(
        "[...document.querySelectorAll('#parameters tbody tr')].filter(row => row.checkVisibility())"
        ".map(row => row.cells[1].textContent)"
    )
    return seen


def choose(page: Page, name: str, value: str) -> None:
    page.value(
        f"(field => {{ field.value = '{value}'; field.dispatchEvent(new Event('input', {{bubbles: true}})) }})"
        f"(document.querySelector('#filter [name={name}]'))"
    )


def defaults(page: Page, name: str) -> str:
    return str(page.value(f"document.getElementById('{name}').closest('tr').cells[2].textContent")).strip()


def fragment(page: Page) -> str:
    return str(page.value("location.hash"))


def test_without_a_choice_all_are_shown(table: Page) -> None:
    assert set(shown(table)) >= set(REGISTRY.parameters)


def test_a_word_typed_leaves_its_rows(table: Page) -> None:
    table.value("document.querySelector('#filter input').focus()")
    table.type("Recompute LAYER")
    left = shown(table)
    assert 0 < len(left) < 10
    choose(table, "q", "checkpoint-factor")
    assert "checkpoint_factor" in shown(table) and "num_layers" not in shown(table)
    assert fragment(table) == "#q=checkpoint-factor"
    told = table.value("document.querySelector('#filter output').innerText")
    assert f"{len(shown(table))} of " in told and f"({len(REGISTRY.parameters)} parameters, " in told
    choose(table, "q", "no such word")
    assert shown(table) == []
    choose(table, "q", "")
    assert set(shown(table)) >= set(REGISTRY.parameters) and fragment(table) == ""


def test_the_bar_is_reached_with_the_keyboard(table: Page) -> None:
    table.value("document.querySelector('#filter input').focus()")
    reached = []
    for _ in range(3):
        table.tell("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
        table.tell("Input.dispatchKeyEvent", type="keyUp", key="Tab", code="Tab", windowsVirtualKeyCode=9)
        reached.append(table.value("document.activeElement.name"))
    assert reached == ["origin", "effect", "dialect"]


def test_an_origin_and_an_effect(table: Page) -> None:
    choose(table, "origin", "DSL")
    dsl = {name for name, parameter in REGISTRY.parameters.items() if "DSL" in parameter.origins}
    assert {name for name in shown(table) if name in REGISTRY.parameters} == dsl
    choose(table, "origin", "")
    choose(table, "effect", "not built")
    waiting = {name for name, parameter in REGISTRY.parameters.items() if parameter.effect == "not built"}
    assert set(shown(table)) == waiting


def test_a_dialect_shows_its_defaults_and_names(table: Page) -> None:
    assert defaults(table, "attention_dropout") == "0.1, 0.0 from 2023-12-26"
    assert defaults(table, "hostfile") == "/job/hostfile"
    choose(table, "dialect", "neox-2026")
    assert defaults(table, "attention_dropout") == "0.0 from 2023-12-26"
    assert "checkpoint_factor" in shown(table) and "save_interval" not in shown(table)
    choose(table, "dialect", "neox-2021")
    assert defaults(table, "attention_dropout") == "0.1"
    assert "checkpoint_factor" not in shown(table) and "save_interval" in shown(table)
    choose(table, "dialect", "day")
    choose(table, "day", "2021-04-01")
    assert defaults(table, "pipe_partition_method") == "type:transformer from 2021-03-19"
    choose(table, "day", "2021-05-19")
    assert defaults(table, "pipe_partition_method") == "type:transformer|mlp from 2021-05-19"
    table.value("document.querySelector('#filter [name=all]').click()")
    assert set(shown(table)) >= set(REGISTRY.parameters)
    assert fragment(table) == "#dialect=2021-05-19&all=1"


def test_a_view_is_an_address(site: Path, window: Page) -> None:
    window.open((site / "parameters.html").as_uri() + "#q=bucket&origin=DSC&dialect=2023-01-01")
    assert "zero_optimization.reduce_bucket_size" in shown(window) and "rpe_num_buckets" not in shown(window)
    assert window.value("document.querySelector('#filter [name=day]').value") == "2023-01-01"
    window.value("location.hash = '#num_layers'")
    window.until("document.querySelector('#filter [name=q]').value === ''")
    assert set(shown(window)) >= set(REGISTRY.parameters)


@pytest.mark.parametrize("width", [400, 1280])
def test_an_anchor_is_seen(site: Path, window: Page, width: int) -> None:
    window.size(width, 900)
    window.open((site / "parameters.html").as_uri() + "#zero_optimization.stage")
    window.until("scrollY > 0")
    covered = "document.querySelector(innerWidth < 600 ? '.mobile-header' : '#filter').getBoundingClientRect().bottom"
    top = "document.getElementById('zero_optimization.stage').getBoundingClientRect().top"
    window.until(f"{top} >= {covered} && {top} < innerHeight")


def test_no_page_is_wider_than_its_window(window: Page, pages: dict[Path, Links]) -> None:
    for page in pages:
        window.open(page.as_uri())
        for width in (400, 800, 1100, 1280, 1340, 1600):
            window.size(width, 900)
            assert window.value("document.documentElement.scrollWidth") <= width, page.name
