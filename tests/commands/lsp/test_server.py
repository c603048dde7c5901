"""The language server and a client over its standard input and output: what an editor shows while someone types."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient

from neoxargs import cli
from neoxargs.commands.lsp.plan_line import line_of
from tests.support.paths import ROOT
from tests.support.refused import refused
from tests.support.snapshots import pinned

RIGHT = "num_layers: 2\nhidden_size: 64\nnum_attention_heads: 4\nseq_length: 64\nmax_position_embeddings: 64\n"
RIGHT += "train_micro_batch_size_per_gpu: 1\ntrain_iters: 10\noptimizer:\n  type: Adam\n  params:\n    lr: 0.001\n"
SECONDS = 60
T = TypeVar("T")


#: What an editor says of itself that corrections of a whole file are made only when they are asked for.
LAZY = lsp.ClientCapabilities(
    text_document=lsp.TextDocumentClientCapabilities(
        code_action=lsp.CodeActionClientCapabilities(resolve_support=lsp.ClientCodeActionResolveOptions(["edit"]))
    ),
    workspace=lsp.WorkspaceClientCapabilities(code_lens=lsp.CodeLensWorkspaceClientCapabilities(True)),
)


#: What most editors say.
USUAL = lsp.ClientCapabilities(
    text_document=lsp.TextDocumentClientCapabilities(
        hover=lsp.HoverClientCapabilities(content_format=[lsp.MarkupKind.Markdown, lsp.MarkupKind.PlainText])
    )
)


class Editor:
    """An editor with one document in front, which `front` changes."""

    def __init__(self, uri: str) -> None:
        self.uri, self.versions = uri, dict[str, int]()
        self.refreshed, self.published = 0, dict[str, list[str]]()
        self.loop = asyncio.new_event_loop()
        self.client = LanguageClient("test", "1")
        self.shown: asyncio.Queue[tuple[str, list[lsp.Diagnostic]]] = asyncio.Queue()

        @self.client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def show(params: lsp.PublishDiagnosticsParams) -> None:
            self.published[params.uri] = [str(each.code) for each in params.diagnostics]
            self.newest = params
            self.shown.put_nowait((params.uri, list(params.diagnostics)))

        @self.client.feature(lsp.WORKSPACE_CODE_LENS_REFRESH)
        def refresh(params: None) -> None:
            self.refreshed += 1

    def wait(self, answer: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(answer, SECONDS))

    def start(self, client: lsp.ClientCapabilities = USUAL) -> None:
        self.wait(self.client.start_io(sys.executable, str(ROOT / "deepy.py"), "lsp"))
        options = {"gpus": 1, "machine": "h100"}
        self.begun = lsp.InitializeParams(client, initialization_options=options)
        self.agreed = self.wait(self.client.initialize_async(self.begun))
        self.client.initialized(lsp.InitializedParams())

    def stop(self) -> None:
        self.wait(self.client.shutdown_async(None))
        self.client.exit(None)
        self.wait(self.client.stop())
        self.loop.close()

    def type(self, text: str) -> list[tuple[str, int, int]]:
        """Give the document this text; return id, line and column, from 0, of what is then underlined as an error."""
        self.versions[self.uri] = version = self.versions.get(self.uri, 0) + 1
        if version == 1:
            item = lsp.TextDocumentItem(self.uri, "yaml", 1, text)
            self.client.text_document_did_open(lsp.DidOpenTextDocumentParams(item))
        else:
            document = lsp.VersionedTextDocumentIdentifier(version, self.uri)
            change = lsp.TextDocumentContentChangeWholeDocument(text)
            self.client.text_document_did_change(lsp.DidChangeTextDocumentParams(document, [change]))
        found = self.diagnostics()
        errors = [each for each in found if each.severity == lsp.DiagnosticSeverity.Error]
        return [(str(each.code), each.range.start.line, each.range.start.character) for each in errors]

    def front(self, path: Path) -> None:
        self.uri = path.as_uri()

    def save(self, text: str) -> None:
        """Write the document, and tell the server so."""
        self.type(text)
        Path(self.uri.removeprefix("file://")).write_text(text)
        self.client.text_document_did_save(lsp.DidSaveTextDocumentParams(self.document))
        self.diagnostics()

    def close(self) -> None:
        """Close all documents."""
        for uri in self.versions:
            self.client.text_document_did_close(lsp.DidCloseTextDocumentParams(lsp.TextDocumentIdentifier(uri)))
        self.versions.clear()

    def diagnostics(self) -> list[lsp.Diagnostic]:
        """Return those of the document in front that come next."""
        uri, found = self.wait(self.shown.get())
        return found if uri == self.uri else self.diagnostics()

    @property
    def document(self) -> lsp.TextDocumentIdentifier:
        return lsp.TextDocumentIdentifier(self.uri)

    def hover(self, line: int, column: int) -> str:
        params = lsp.HoverParams(self.document, lsp.Position(line, column))
        found = self.wait(self.client.text_document_hover_async(params))
        return found.contents.value if found and isinstance(found.contents, lsp.MarkupContent) else ""

    def declarations(self, line: int, column: int) -> list[tuple[str, int, int, int]]:
        """Return the name of the file, the line, and the first and last column, of each place."""
        params = lsp.DefinitionParams(self.document, lsp.Position(line, column))
        found: Any = self.wait(self.client.text_document_definition_async(params))
        at = [(each.uri.rpartition("/")[2], each.range) for each in found or ()]
        return [(name, range.start.line, range.start.character, range.end.character) for name, range in at]

    def lenses(self) -> list[str]:
        """Return the lines above the document."""
        found = self.wait(self.client.text_document_code_lens_async(lsp.CodeLensParams(self.document))) or ()
        assert all(lens.command is None for lens in found)
        lenses = [self.wait(self.client.code_lens_resolve_async(lens)) for lens in found]
        return [lens.command.title for lens in lenses if lens.command]

    def actions(self, line: int, *only: str) -> list[lsp.CodeAction]:
        within = lsp.Range(lsp.Position(line, 3), lsp.Position(line, 3))
        params = lsp.CodeActionParams(self.document, within, lsp.CodeActionContext([], list(only) or None))
        found = self.wait(self.client.text_document_code_action_async(params)) or ()
        return [action for action in found if isinstance(action, lsp.CodeAction)]

    def after(self, action: lsp.CodeAction) -> str:
        """Return the document after an action."""
        action = action if action.edit else self.wait(self.client.code_action_resolve_async(action))
        assert action.edit and action.edit.changes
        [edit] = action.edit.changes[self.uri]
        return edit.new_text

    def completions(self, line: int, column: int) -> dict[str, lsp.CompletionItem]:
        params = lsp.CompletionParams(lsp.TextDocumentIdentifier(self.uri), lsp.Position(line, column))
        found = self.wait(self.client.text_document_completion_async(params))
        assert isinstance(found, lsp.CompletionList)
        return {item.label: item for item in found.items}

    def quick_fixes(self, line: int) -> list[lsp.CodeAction]:
        return self.actions(line, lsp.CodeActionKind.QuickFix)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "my.yml"


@pytest.fixture(scope="module")
def started() -> Iterator[Editor]:
    editor = Editor("")
    editor.start()
    yield editor
    editor.stop()


@pytest.fixture
def editor(started: Editor, path: Path) -> Iterator[Editor]:
    started.front(path)
    yield started
    started.close()


def test_problems_follow_the_text_and_a_quick_fix_corrects_one(editor: Editor) -> None:
    assert editor.type(RIGHT) == []
    assert editor.type(RIGHT.replace("hidden_size", "hiden_size"))[:1] == [("unknown-key", 1, 0)]
    [action] = editor.quick_fixes(line=1)
    assert action.is_preferred and editor.after(action) == RIGHT
    assert editor.type(editor.after(action)) == []
    assert editor.quick_fixes(line=1) == []


def test_any_text_is_answered(editor: Editor) -> None:
    texts = ["", "a", "num_layers", "optimizer:\n  ty", "{", "- 1\n", "x: [1,\n", "\t\n", "é: 😀\n", "\ufeff\r\n:\r\n"]
    for text in texts:
        editor.type(text)
        editor.completions(text.count("\n"), 0)
        editor.hover(text.count("\n"), 0)
        assert editor.type(RIGHT) == [], text


def test_a_file_is_checked_in_the_runs_that_have_it(editor: Editor, path: Path, run: Path) -> None:
    """Here in two, which share their base; the file alone would lack its shape."""
    text = path.read_text()
    assert editor.type(text) == []
    assert editor.type(f"{text}hidden_size: 32\n")[:1] == [("duplicate-key", 8, 0)]
    assert "base.yml:2:1" in editor.hover(8, 3)
    with (path.parent / "deepy.toml").open("a") as table:
        table.write('two = {files = "my.yml", gpus = 2}\n')
    assert editor.type(text) == []
    assert [id for id, *_ in editor.type(f"{text}model_parallel_size: 2\n")] == ["gpus-hold-whole-replicas"]


def test_files_of_other_programs_are_left_alone(editor: Editor) -> None:
    assert editor.type("version: 3\nservices:\n  web: {image: nginx}\n") == []
    assert editor.type("version: 3\nnum_layers: x\n") != []


def test_an_accelerate_yaml_is_judged_for_accelerate(editor: Editor) -> None:
    """It has no key of ours."""
    text = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 8\nmixed_precisoin: bf16\n"
    assert editor.type(text) == [("other-program-key", 3, 0)]
    [correct, _] = editor.actions(3)
    assert editor.lenses() == [] and editor.type(editor.after(correct)) == []


def test_positions_are_in_utf_16(editor: Editor) -> None:
    """In which the character in this line has two units; another editor may ask for other units."""
    assert ("unknown-key", 11, len("lora: {note😀: 1, ") + 1) in editor.type(f"{RIGHT}lora: {{note😀: 1, rnak: 8}}\n")


def test_a_key_is_described_with_its_value(editor: Editor, path: Path) -> None:
    path.write_text(RIGHT)
    editor.type(RIGHT)
    found = editor.hover(10, 5)
    assert "**`optimizer.params.lr: 0.001`**" in found and "my.yml:11:5" in found
    editor.save(RIGHT)
    plain = Editor(editor.uri)
    plain.start(LAZY)
    plain.type(RIGHT)
    assert plain.hover(10, 5).startswith("optimizer.params.lr\n  meaning ")
    plain.stop()


def test_keys_of_a_section_and_values_are_completed(editor: Editor) -> None:
    editor.type(f"{RIGHT}zero_optimization:\n  sta\nprecision: b\n")
    keys, values = editor.completions(12, 5), editor.completions(13, 12)
    assert "stage" in keys and "num_layers" not in keys
    assert keys["stage"].text_edit == lsp.TextEdit(lsp.Range(lsp.Position(12, 2), lsp.Position(12, 5)), "stage: ")
    assert "bfloat16" in values and "stage" not in values
    assert {"zero_optimization", "num_layers"} <= editor.completions(14, 0).keys()


TABLE = 'base = "base.yml"\n[runs]\none = {files = "my.yml", gpus = 1}\n'


@pytest.fixture
def run(editor: Editor, path: Path) -> Path:
    """Write a run of two files, the editor's and base.yml, which has the shape, and return the path of the latter."""
    base = path.parent / "base.yml"
    half = RIGHT.index("seq_length")
    base.write_text(RIGHT[:half])
    path.write_text(RIGHT[half:])
    (path.parent / "deepy.toml").write_text(TABLE)
    return base


def test_the_place_of_the_value_in_effect(editor: Editor, path: Path, run: Path) -> None:
    text = (
        path.read_text() + "x-rates: &rate 0.1\nweight_decay: *rate\ntrain_batch_size: auto\nfp16: {enabled: false}\n"
    )
    editor.type(text)
    rows = {line.partition(":")[0].strip(): number for number, line in enumerate(text.split("\n"))}
    found = {key: editor.declarations(line, 4) for key, line in rows.items() if key}
    assert found["seq_length"] == [("my.yml", 0, 0, len("seq_length"))]
    assert found["lr"] == [("my.yml", rows["lr"], 4, 6)] and found["params"] == [("my.yml", rows["params"], 2, 8)]
    assert found["train_batch_size"] == [("my.yml", rows["train_micro_batch_size_per_gpu"], 0, 33)]
    assert found["weight_decay"] == [("my.yml", rows["x-rates"], 9, 18)]
    assert found["x-rates"] == []
    # the first of two counts, which are an error
    text = text.replace("fp16: {enabled: false}", "num-layers: 4")
    editor.type(text)
    assert editor.declarations(rows["fp16"], 4) == [("base.yml", 0, 0, len("num_layers"))]
    # base.yml is open too, and not saved; and a second run has another base
    editor.front(run)
    editor.type("# a comment\n" + run.read_text())
    editor.front(path)
    assert editor.declarations(rows["fp16"], 4) == [("base.yml", 1, 0, len("num_layers"))]
    (path.parent / "other.yml").write_text("seed: 1\nnum_layers: 8\n")
    with (path.parent / "deepy.toml").open("a") as table:
        table.write('two = {base = [], files = ["other.yml", "my.yml"], gpus = 1}\n')
    editor.type(text)
    assert editor.declarations(rows["fp16"], 4) == [("base.yml", 1, 0, 10), ("other.yml", 1, 0, 10)]


def test_the_files_of_a_table_and_its_mistakes(editor: Editor, path: Path, run: Path) -> None:
    for name in ("deepy.toml", "pyproject.toml"):
        editor.front(path.parent / name)
        text = TABLE + "both = {files = 'm?.yml', gpus = 2}\nnone = {files = 'no.yml', gpus = 2}\n"
        if name == "pyproject.toml":
            text = '[project]\nreadme = "my.yml"\n[tool.deepy]\n' + text.replace("[runs", "[tool.deepy.runs")
        assert editor.type(text) == [("runs-table-file", text.count("\n") - 1, 17)]
        at = {line: editor.declarations(line, 18) for line in range(text.count("\n"))}
        here = text[: text.index("base =")].count("\n")
        assert at.pop(here + 2) == at.pop(here + 3) == [("my.yml", 0, 0, 1)]
        assert editor.declarations(here, 10) == [("base.yml", 0, 0, 1)]
        assert not any(at.values())
        assert here == 0 or editor.declarations(1, 12) == []  # the file that another program's table names
    assert editor.type("[tool.other]\nx = 1\n") == [] and editor.type("[project\n") == []


def test_the_runs_are_kept_while_someone_edits_their_table(editor: Editor, path: Path, run: Path) -> None:
    assert editor.type(path.read_text()) == []
    table = path.parent / "deepy.toml"
    table.write_text(TABLE + "two = {files = \n")
    assert editor.type(path.read_text()) == []
    table.write_text("gpus = 1\n[runs]\n")
    assert {id for id, *_ in editor.type(path.read_text())} == {"required-parameter-missing"}


def test_the_plan_of_the_saved_file(editor: Editor, path: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is what `deepy plan` says, after saving, and not while someone types."""
    text = path.read_text()
    editor.type(text)
    before = editor.lenses()
    cli.main(["plan", str(run), str(path), "--gpus", "1", "--device", "h100", "--json"])
    assert before == [line_of(json.loads(capsys.readouterr().out), "one")]
    larger = text.replace("max_position_embeddings: 64", "max_position_embeddings: 4096")
    editor.type(larger)
    assert editor.lenses() == before
    editor.save(larger)
    assert editor.lenses() != before
    editor.save(text + "lr: x\n")
    pinned(editor.lenses())
    editor.save("version: 3\nservices: {}\n")
    assert editor.lenses() == []


def test_what_a_plan_says_in_a_line() -> None:
    plan: dict[str, Any] = {
        "parameters": 124e6, "ranks": 8, "fits": True, "verdict": "fits", "overflows_in": None,
        "stages": [{"peak": 2**34}, {"peak": 2**35}],
        "planned_for": {"name": "H100-80GB", "usable": 2**36}, "host": {"memory": 2**37}, "speed": {"total": 3e5},
    }  # fmt: skip
    others: list[dict[str, Any]] = [
        {}, {"fits": False, "verdict": "does not fit", "overflows_in": "backward"},
        {"fits": False, "verdict": "does not fit"},
        {"fits": None, "verdict": "no verdict", "planned_for": {"name": "GPU", "usable": None}},
        {"planned_for": {"name": "CPU", "usable": None}, "ranks": 1},
    ]  # fmt: skip
    pinned("\n".join([*(line_of(plan | other) for other in others), line_of({})]))


WRONG = RIGHT.replace("hidden_size", "hiden_size").replace("train_iters: 10", "train_iters: 1,024")
WRONG += "attention_dropuot: 0.1  # why\nattention_droput: 0.1\nweight_decy: 0.1\nfp16:\nenabled: false\n"


def test_all_certain_corrections_are_those_of_check(editor: Editor, path: Path) -> None:
    path.write_text(WRONG)
    assert cli.main(["check", str(path), "--gpus", "1", "--fix"]) == 1
    assert path.read_text() not in (WRONG, RIGHT)
    assert len(editor.type(WRONG)) > 2
    for only in ("source", "source.fixAll", "source.fixAll.deepy"):
        [action] = editor.actions(0, only)
        assert (action.kind, editor.after(action)) == ("source.fixAll.deepy", path.read_text())
    assert editor.actions(0, "source.organizeImports") == editor.actions(0, "source.fixAll.other") == []
    editor.type(path.read_text())
    assert editor.actions(0, "source") == []


def test_corrections_of_a_run_stay_in_the_file_and_are_made_when_they_are_asked_for(path: Path, run: Path) -> None:
    run.write_text(run.read_text().replace("hidden_size", "hiden_size"))
    editor = Editor(path.as_uri())
    editor.start(LAZY)
    wrong = path.read_text() + "weight_decy: 0.1\n"
    editor.type(wrong)
    [action] = editor.actions(0, "source")
    assert action.edit is None and editor.after(action) == wrong.replace("decy", "decay")
    before = editor.refreshed
    editor.save(wrong)
    editor.lenses()
    assert editor.refreshed == before + 1
    editor.stop()


def test_an_old_key_is_renamed_where_its_value_stays_the_same(editor: Editor) -> None:
    old = f"{RIGHT}dialect: neox-2026\nsave-interval: 5\nbfloat16: {{enabled: false}}\n"
    assert editor.type(old) == []
    rows = RIGHT.count("\n") + 1, RIGHT.count("\n") + 2
    one, both = editor.actions(rows[0])
    assert editor.after(one) == old.replace("save-interval", "checkpoint-factor")
    assert editor.after(both) == old.replace("save-interval", "checkpoint-factor").replace("bfloat16", "bf16")
    first, _ = editor.actions(rows[1], "refactor")
    assert editor.after(first) == old.replace("bfloat16", "bf16")
    assert editor.actions(0) == []
    # with the new key, the file has another date's defaults, or the key twice
    for undated in (old.replace("dialect: neox-2026\n", "\n"), old.replace("save-", "checkpoint-factor: 5\nsave-")):
        editor.type(undated)
        assert editor.actions(rows[0], "refactor") == []


def test_an_old_key_is_renamed_by_the_date_that_another_file_sets(editor: Editor, path: Path, run: Path) -> None:
    text = path.read_text() + "save_interval: 5\n"
    editor.type(text)
    assert editor.actions(text.count("\n") - 1) == []
    run.write_text(run.read_text() + "dialect: neox-2026\n")
    [action] = editor.actions(text.count("\n") - 1)
    assert editor.after(action) == text.replace("save_interval", "checkpoint_factor")


def test_saving_a_file_checks_the_others_of_its_run(editor: Editor, path: Path, run: Path) -> None:
    assert editor.type(path.read_text()) == []
    uri, shape = editor.uri, run.read_text()
    editor.front(run)
    editor.save(shape + "seq_length: 64\n")
    assert editor.published[uri] == ["duplicate-key"]
    editor.save(shape)
    assert "duplicate-key" not in editor.published[uri]


def test_an_exchange_with_each_feature(editor: Editor, path: Path, run: Path) -> None:
    """As it is sent, without the headers; of the plan without its numbers."""
    said: list[str] = []
    unstructured = editor.client.protocol._converter.unstructure

    def ask(method: str, params: Any) -> Any:
        async def answered() -> Any:
            return await editor.client.protocol.send_request_async(method, params)

        answer = editor.wait(answered())
        said.append(f"{method} {as_sent(params)}\n  {as_sent(answer)}")
        return answer

    def as_sent(message: Any) -> str:
        return json.dumps(unstructured(message), sort_keys=True)

    def at(line: int, column: int) -> Any:
        return {"text_document": editor.document, "position": lsp.Position(line, column)}

    text = (
        path.read_text() + "dialect: neox-2026\nsave_interval: 5\nno_weight_tying: f\nweight_decy: 0.1\nnum-layers: 2\n"
    )
    said.append(
        re.sub(r'("version": )"[^"]*"', r'\1"N"', f"initialize {as_sent(editor.begun)}\n  {as_sent(editor.agreed)}")
    )
    editor.type(text)
    said.append(f"textDocument/publishDiagnostics {as_sent(editor.newest)}")
    line = text.count("\n")
    ask("textDocument/hover", lsp.HoverParams(**at(0, 3)))
    ask("textDocument/completion", lsp.CompletionParams(**at(line - 3, 18)))
    ask("textDocument/definition", lsp.DefinitionParams(**at(line - 1, 3)))
    for number in (line - 4, line - 2):
        within = lsp.Range(lsp.Position(number, 0), lsp.Position(number, 0))
        params = lsp.CodeActionParams(editor.document, within, lsp.CodeActionContext([]))
        actions = ask("textDocument/codeAction", params)
    ask("codeAction/resolve", actions[-1])
    [lens] = ask("textDocument/codeLens", lsp.CodeLensParams(editor.document))
    ask("codeLens/resolve", lens)
    pinned("\n".join([*said[:-1], re.sub(r"\d[\d.,]*(?= [A-Za-z])", "N", said[-1])]))


def test_without_its_package_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == "pygls" or "commands.lsp.server" in name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pygls", None)
    pinned(refused(lambda: cli.COMMANDS["lsp"]([])))
