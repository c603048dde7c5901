"""The language server and a client over its standard input and output: what an editor shows while someone types."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient

from neoxargs import cli
from tests.support.paths import ROOT
from tests.support.refused import refused
from tests.support.snapshots import pinned

RIGHT = "num_layers: 2\nhidden_size: 64\nnum_attention_heads: 4\nseq_length: 64\nmax_position_embeddings: 64\n"
RIGHT += "train_micro_batch_size_per_gpu: 1\ntrain_iters: 10\noptimizer:\n  type: Adam\n  params:\n    lr: 0.001\n"
SECONDS = 60
T = TypeVar("T")


class Editor:
    """An editor with one document."""

    def __init__(self, uri: str) -> None:
        self.uri, self.version = uri, 0
        self.loop = asyncio.new_event_loop()
        self.client = LanguageClient("test", "1")
        self.shown: asyncio.Queue[list[lsp.Diagnostic]] = asyncio.Queue()

        @self.client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def show(params: lsp.PublishDiagnosticsParams) -> None:
            self.shown.put_nowait(list(params.diagnostics))

    def wait(self, answer: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(answer, SECONDS))

    def start(self) -> None:
        self.wait(self.client.start_io(sys.executable, str(ROOT / "deepy.py"), "lsp"))
        params = lsp.InitializeParams(lsp.ClientCapabilities(), initialization_options={"gpus": 1})
        self.wait(self.client.initialize_async(params))
        self.client.initialized(lsp.InitializedParams())

    def stop(self) -> None:
        self.wait(self.client.shutdown_async(None))
        self.client.exit(None)
        self.wait(self.client.stop())
        self.loop.close()

    def type(self, text: str) -> list[tuple[str, int, int]]:
        """Give the document this text; return id, line and column, from 0, of what is then underlined as an error."""
        self.version += 1
        if self.version == 1:
            item = lsp.TextDocumentItem(self.uri, "yaml", 1, text)
            self.client.text_document_did_open(lsp.DidOpenTextDocumentParams(item))
        else:
            document = lsp.VersionedTextDocumentIdentifier(self.version, self.uri)
            change = lsp.TextDocumentContentChangeWholeDocument(text)
            self.client.text_document_did_change(lsp.DidChangeTextDocumentParams(document, [change]))
        found = self.wait(self.shown.get())
        errors = [each for each in found if each.severity == lsp.DiagnosticSeverity.Error]
        return [(str(each.code), each.range.start.line, each.range.start.character) for each in errors]

    def hover(self, line: int, column: int) -> str:
        params = lsp.HoverParams(lsp.TextDocumentIdentifier(self.uri), lsp.Position(line, column))
        found = self.wait(self.client.text_document_hover_async(params))
        return found.contents.value if found and isinstance(found.contents, lsp.MarkupContent) else ""

    def completions(self, line: int, column: int) -> dict[str, lsp.CompletionItem]:
        params = lsp.CompletionParams(lsp.TextDocumentIdentifier(self.uri), lsp.Position(line, column))
        found = self.wait(self.client.text_document_completion_async(params))
        assert isinstance(found, lsp.CompletionList)
        return {item.label: item for item in found.items}

    def quick_fixes(self, line: int) -> list[lsp.CodeAction]:
        within, context = lsp.Range(lsp.Position(line, 3), lsp.Position(line, 3)), lsp.CodeActionContext([])
        params = lsp.CodeActionParams(lsp.TextDocumentIdentifier(self.uri), within, context)
        found = self.wait(self.client.text_document_code_action_async(params)) or ()
        return [action for action in found if isinstance(action, lsp.CodeAction)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "my.yml"


@pytest.fixture
def editor(path: Path) -> Iterator[Editor]:
    editor = Editor(path.as_uri())
    editor.start()
    yield editor
    editor.stop()


def test_problems_follow_the_text_and_a_quick_fix_corrects_one(editor: Editor) -> None:
    assert editor.type(RIGHT) == []
    assert editor.type(RIGHT.replace("hidden_size", "hiden_size"))[:1] == [("unknown-key", 1, 0)]
    [action] = editor.quick_fixes(line=1)
    assert action.edit and action.edit.changes and action.is_preferred
    [edit] = action.edit.changes[editor.uri]
    assert edit.new_text == RIGHT
    assert editor.type(edit.new_text) == []
    assert editor.quick_fixes(line=1) == []


def test_any_text_is_answered(editor: Editor) -> None:
    texts = ["", "a", "num_layers", "optimizer:\n  ty", "{", "- 1\n", "x: [1,\n", "\t\n", "é: 😀\n", "\ufeff\r\n:\r\n"]
    for text in texts:
        editor.type(text)
        editor.completions(text.count("\n"), 0)
        editor.hover(text.count("\n"), 0)
        assert editor.type(RIGHT) == [], text


def test_a_file_is_checked_in_the_runs_that_have_it(editor: Editor, path: Path) -> None:
    """Here in two, which share their base; the file alone would lack its shape."""
    half = RIGHT.index("seq_length")
    (path.parent / "base.yml").write_text(RIGHT[:half])
    path.write_text(RIGHT[half:])
    (path.parent / "deepy.toml").write_text('base = "base.yml"\n[runs]\none = {files = "my.yml", gpus = 1}\n')
    assert editor.type(RIGHT[half:]) == []
    assert editor.type(f"{RIGHT[half:]}hidden_size: 32\n")[:1] == [("duplicate-key", 8, 0)]
    assert "base.yml:2:1" in editor.hover(8, 3)
    with (path.parent / "deepy.toml").open("a") as table:
        table.write('two = {files = "my.yml", gpus = 2}\n')
    assert editor.type(RIGHT[half:]) == []
    assert [id for id, *_ in editor.type(f"{RIGHT[half:]}model_parallel_size: 2\n")] == ["gpus-hold-whole-replicas"]


def test_files_of_other_programs_are_left_alone(editor: Editor) -> None:
    assert editor.type("version: 3\nservices:\n  web: {image: nginx}\n") == []
    assert editor.type("version: 3\nnum_layers: x\n") != []


def test_positions_are_in_utf_16(editor: Editor) -> None:
    """In which the character in this line has two units; another editor may ask for other units."""
    assert ("unknown-key", 11, len("lora: {note😀: 1, ") + 1) in editor.type(f"{RIGHT}lora: {{note😀: 1, rnak: 8}}\n")


def test_a_key_is_described_with_its_value(editor: Editor, path: Path) -> None:
    path.write_text(RIGHT)
    editor.type(RIGHT)
    found = editor.hover(10, 5)
    assert "optimizer.params.lr" in found and "my.yml:11:5" in found


def test_keys_of_a_section_and_values_are_completed(editor: Editor) -> None:
    editor.type(f"{RIGHT}zero_optimization:\n  sta\nprecision: b\n")
    keys, values = editor.completions(12, 5), editor.completions(13, 12)
    assert "stage" in keys and "num_layers" not in keys
    assert keys["stage"].text_edit == lsp.TextEdit(lsp.Range(lsp.Position(12, 2), lsp.Position(12, 5)), "stage: ")
    assert "bfloat16" in values and "stage" not in values
    assert {"zero_optimization", "num_layers"} <= editor.completions(14, 0).keys()


def test_without_its_package_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == "pygls" or "commands.lsp.server" in name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pygls", None)
    pinned(refused(lambda: cli.COMMANDS["lsp"]([])))
