"""The docs site builds without warnings, needs no network, has no dead links, and filters the parameter tables."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from neoxargs.commands.explain.catalogue import catalogue
from neoxargs.registry import REGISTRY
from tests.support.browser import CHROMIUM, Page, browser
from tests.support.legibility import low_contrasts
from tests.support.paths import DOCS, ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("furo") is None or importlib.util.find_spec("myst_parser") is None:
        pytest.skip("Sphinx with furo and myst_parser is not installed: pip install -c constraints.txt -e '.[docs]'")
    output = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "docs", str(output)],
        cwd=ROOT, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return output


class Links(HTMLParser):
    """The files that a page loads, its links and its anchors."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.anchors: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.anchors += [attributes["id"]] if "id" in attributes else []
        self.loaded += [attributes["src"]] if "src" in attributes else []
        if "href" in attributes:
            (self.links if tag == "a" else self.loaded).append(attributes["href"])


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    problems = sorted(site.glob("problems/*.html"))[::60]  # made by one template
    chosen = [*sorted(site.glob("*.html")), *problems, site / "problems" / "index.html"]
    return {page: Links(page) for page in chosen}


def test_pages_load_only_files_of_the_site(site: Path, pages: dict[Path, Links]) -> None:
    for page, page_links in pages.items():
        for address in page_links.loaded:
            parts = urlsplit(address)
            assert not parts.scheme and not parts.netloc, (page.name, address)
            assert (page.parent / parts.path).exists(), (page.name, address)
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_every_link_has_a_target(site: Path, pages: dict[Path, Links]) -> None:
    for page, page_links in pages.items():
        for link in page_links.links:
            parts = urlsplit(link)
            if parts.scheme or not link:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            assert target.exists(), (page.name, link)
            if parts.fragment and "=" not in parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].anchors, (page.name, link)


def test_every_parameter_has_exactly_one_anchor(site: Path, pages: dict[Path, Links]) -> None:
    anchors = pages[site / "parameters.html"].anchors
    assert len(anchors) == len(set(anchors))
    assert set(REGISTRY.parameters) <= set(anchors)


def test_every_page_is_in_the_navigation(site: Path, pages: dict[Path, Links]) -> None:
    listed = {urlsplit(link).path for link in pages[site / "index.html"].links}
    assert {path.stem for path in DOCS.glob("*.md")} - {"index"} <= {Path(path).stem for path in listed}


def test_every_problem_has_a_page_with_its_example(site: Path, pages: dict[Path, Links]) -> None:
    assert {path.stem for path in (site / "problems").glob("*.html")} == {*catalogue(), "index"}
    listed = {urlsplit(link).path for link in pages[site / "problems" / "index.html"].links}
    assert {f"{name}.html" for name in catalogue()} <= listed
    text = (site / "problems" / "rotary-dims-even.html").read_text(encoding="utf-8")
    assert "[rotary-dims-even]" in text and "../parameters.html#rotary_pct" in text


def test_the_search_finds_the_page_of_a_problem(site: Path, window: Page) -> None:
    window.open((site / "search.html").as_uri() + "?q=rotary-dims-even")
    first = "document.querySelector('#search-results li a')"
    window.until(f"{first} !== null")
    assert window.value(f"{first}.getAttribute('href')").startswith("problems/rotary-dims-even.html")


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with browser(tmp_path_factory.mktemp("profile")) as page:
        page.size(1280, 900)
        yield page


@pytest.fixture
def table(site: Path, window: Page) -> Page:
    window.open((site / "parameters.html").as_uri())
    return window


def visible_names(page: Page) -> list[str]:
    """The names in the visible rows."""
    names: list[str] = page.value(
        "[...document.querySelectorAll('#parameters tbody tr')].filter(row => row.checkVisibility())"
        ".map(row => row.cells[1].textContent)"
    )
    return names


def choose(page: Page, name: str, value: str) -> None:
    page.value(
        f"(field => {{ field.value = '{value}'; field.dispatchEvent(new Event('input', {{bubbles: true}})) }})"
        f"(document.querySelector('#filter [name={name}]'))"
    )


def defaults(page: Page, name: str) -> str:
    return str(page.value(f"document.getElementById('{name}').closest('tr').cells[2].textContent")).strip()


def fragment(page: Page) -> str:
    return str(page.value("location.hash"))


def test_without_a_filter_all_rows_are_shown(table: Page) -> None:
    assert set(visible_names(table)) >= set(REGISTRY.parameters)


def test_words_filter_the_rows(table: Page) -> None:
    table.value("document.querySelector('#filter input').focus()")
    table.type("Recompute LAYER")
    left = visible_names(table)
    assert 0 < len(left) < 10
    choose(table, "q", "checkpoint-factor")
    assert "checkpoint_factor" in visible_names(table) and "num_layers" not in visible_names(table)
    assert fragment(table) == "#q=checkpoint-factor"
    summary = table.value("document.querySelector('#filter output').innerText")
    assert f"{len(visible_names(table))} of " in summary and f"({len(REGISTRY.parameters)} parameters, " in summary
    choose(table, "q", "no such word")
    assert visible_names(table) == []
    choose(table, "q", "")
    assert set(visible_names(table)) >= set(REGISTRY.parameters) and fragment(table) == ""


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("lr", "lr"),
        ("seed", "seed"),
        ("hidden size", "hidden_size"),
        ("num-layers", "num_layers"),
        ("train_iters", "train_iters"),
        ("zero_optimization.stage", "zero_optimization.stage"),
        ("reduce bucket size", "zero_optimization.reduce_bucket_size"),
        ("idden_siz", "hidden_size"),
    ],
)
def test_matches_are_ranked_by_name(query: str, first: str, table: Page) -> None:
    choose(table, "q", query)
    names = visible_names(table)
    assert names[0] == first
    word = query.replace(" ", "_").replace("-", "_")
    ranks = [
        0
        if name == word
        else 1
        if name.endswith(f".{word}")
        else 2
        if name.startswith(word)
        else 3
        if word in name
        else 4
        for name in names
    ]
    assert ranks == sorted(ranks)
    choose(table, "q", "")
    assert visible_names(table)[:2] == [*REGISTRY.parameters][:2], "in their tables again"


def test_the_description_is_searched_after_the_names(table: Page) -> None:
    choose(table, "q", "dropout")
    names = visible_names(table)
    has = ["dropout" in name for name in names]
    assert True in has and False in has and has == sorted(has, reverse=True)


def test_a_filter_without_matches_says_so(table: Page) -> None:
    said = "(p => p.checkVisibility() ? p.innerText : '')(document.querySelector('#filter .none'))"
    assert table.value(said) == ""
    choose(table, "q", "no such word")
    assert table.value(said) == "No name matches \u201cno such word\u201d: use fewer or shorter words."
    choose(table, "origin", "DSL")
    choose(table, "q", "hidden_size")
    assert "set Origin, Effect and Dialect to any" in table.value(said)
    choose(table, "origin", "")
    assert table.value(said) == "" and visible_names(table)[0] == "hidden_size"


def test_origins_are_explained(table: Page) -> None:
    assert REGISTRY.parameters["include"].origins == ("DSL",)
    shown = "document.querySelector('#parameters').innerText"
    options = table.value("[...document.querySelectorAll('#filter [name=origin] option')].map(each => each.innerText)")
    for code in {origin for parameter in REGISTRY.parameters.values() for origin in parameter.origins}:
        assert re.search(rf"\b{code}, [a-z]", table.value(shown)), "on the page, without a click"
        assert any(option.strip().startswith(f"{code}: ") for option in options)
    title = table.value("document.getElementById('include').closest('tr').cells[0].title")
    assert title == "DSL: flag of DeepSpeed's launcher"


@pytest.mark.parametrize("name", ["hidden_size", "lr", "zero_optimization.stage", "num_accelerators", "hostfile"])
def test_the_search_of_the_site_finds_a_parameter_by_its_name(name: str, site: Path, window: Page) -> None:
    window.open((site / "search.html").as_uri() + f"?q={name}")
    window.until("document.querySelector('#search-results li a') !== null")
    first = str(window.value("document.querySelector('#search-results li a').href"))
    assert first.partition("/parameters.html")[2].endswith(f"#{name}")


def test_the_search_of_the_site_knows_every_parameter(site: Path) -> None:
    index = (site / "searchindex.js").read_text()
    objects = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))["objects"]
    known = {".".join(filter(None, (prefix, each[4]))) for prefix, of in objects.items() for each in of}
    assert set(REGISTRY.parameters) <= known


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_of_the_parameter_page_has_contrast(scheme: str, site: Path, window: Page) -> None:
    window.size(1280, 900, scheme)
    found = set()
    # with older defaults, with names that the dialect lacks, without matches, and an anchor
    for fragment in ("q=checkpoint", "q=dropout&dialect=neox-2021&all=1", "q=no such word", "zero_optimization.stage"):
        window.open((site / "parameters.html").as_uri() + "#" + fragment)
        found |= low_contrasts(window, scheme)
    for name in ("effects", "index"):
        window.open((site / f"{name}.html").as_uri())
        found |= low_contrasts(window, scheme)
    assert not found


def test_the_filter_is_reachable_by_keyboard(table: Page) -> None:
    table.value("document.querySelector('#filter input').focus()")
    reached = []
    for _ in range(3):
        table.send("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
        table.send("Input.dispatchKeyEvent", type="keyUp", key="Tab", code="Tab", windowsVirtualKeyCode=9)
        reached.append(table.value("document.activeElement.name"))
    assert reached == ["origin", "effect", "dialect"]


def test_filter_by_origin_and_effect(table: Page) -> None:
    choose(table, "origin", "DSL")
    dsl = {name for name, parameter in REGISTRY.parameters.items() if "DSL" in parameter.origins}
    assert {name for name in visible_names(table) if name in REGISTRY.parameters} == dsl
    choose(table, "origin", "")
    choose(table, "effect", "not built")
    not_built = {name for name, parameter in REGISTRY.parameters.items() if parameter.effect == "not built"}
    assert set(visible_names(table)) == not_built


def test_filter_by_dialect_shows_its_defaults_and_names(table: Page) -> None:
    assert defaults(table, "attention_dropout") == "0.1, 0.0 from 2023-12-26"
    assert defaults(table, "hostfile") == "/job/hostfile"
    choose(table, "dialect", "neox-2026")
    assert defaults(table, "attention_dropout") == "0.0 from 2023-12-26"
    assert "checkpoint_factor" in visible_names(table) and "save_interval" not in visible_names(table)
    choose(table, "dialect", "neox-2021")
    assert defaults(table, "attention_dropout") == "0.1"
    assert "checkpoint_factor" not in visible_names(table) and "save_interval" in visible_names(table)
    choose(table, "dialect", "day")
    choose(table, "day", "2021-04-01")
    assert defaults(table, "pipe_partition_method") == "type:transformer from 2021-03-19"
    choose(table, "day", "2021-05-19")
    assert defaults(table, "pipe_partition_method") == "type:transformer|mlp from 2021-05-19"
    table.value("document.querySelector('#filter [name=all]').click()")
    assert set(visible_names(table)) >= set(REGISTRY.parameters)
    assert fragment(table) == "#dialect=2021-05-19&all=1"


def test_the_filter_state_is_in_the_url(site: Path, window: Page) -> None:
    window.open((site / "parameters.html").as_uri() + "#q=bucket&origin=DSC&dialect=2023-01-01")
    names = visible_names(window)
    assert "zero_optimization.reduce_bucket_size" in names and "rpe_num_buckets" not in names
    assert window.value("document.querySelector('#filter [name=day]').value") == "2023-01-01"
    window.value("location.hash = '#num_layers'")
    window.until("document.querySelector('#filter [name=q]').value === ''")
    assert set(visible_names(window)) >= set(REGISTRY.parameters)


@pytest.mark.parametrize("width", [400, 1280])
def test_an_anchor_scrolls_its_row_into_view(site: Path, window: Page, width: int) -> None:
    window.size(width, 900)
    window.open((site / "parameters.html").as_uri() + "#zero_optimization.stage")
    window.until("scrollY > 0")
    covered = "document.querySelector(innerWidth < 600 ? '.mobile-header' : '#filter').getBoundingClientRect().bottom"
    top = "document.getElementById('zero_optimization.stage').getBoundingClientRect().top"
    window.until(f"{top} >= {covered} && {top} < innerHeight")


def test_no_page_is_wider_than_the_window(window: Page, pages: dict[Path, Links]) -> None:
    for page in pages:
        window.open(page.as_uri())
        for width in (400, 800, 1100, 1280, 1340, 1600):
            window.size(width, 900)
            assert window.value("document.documentElement.scrollWidth") <= width, page.name
