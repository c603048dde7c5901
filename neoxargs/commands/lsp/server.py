"""The language server: problems as one types, corrections, descriptions, completions, places, plans (docs/editors.md).

Speaks over standard input and output. A file is checked with the other files of its runs, as the repository's table
names them: syntax, keys, values and the rules between them.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer
from pygls.workspace import TextDocument

from neoxargs.base.files import Text
from neoxargs.base.problems import Place, Problem, sentence
from neoxargs.commands.check.table import is_table
from neoxargs.commands.lsp import answers
from neoxargs.commands.lsp.cursor import Cursor, cursor_at
from neoxargs.commands.lsp.plan_line import MOST_RUNS, Planner
from neoxargs.resolve.yaml.read import read_text

FIX_ALL = f"{lsp.CodeActionKind.SourceFixAll.value}.deepy"
KINDS = [lsp.CodeActionKind.QuickFix, lsp.CodeActionKind.RefactorRewrite, FIX_ALL]
SEVERITIES = {"error": lsp.DiagnosticSeverity.Error, "warning": lsp.DiagnosticSeverity.Warning}


class Server(LanguageServer):
    """The server of one editor."""

    gpus: int | None = None
    """GPUs to assume, the setting `gpus`; None: those of this machine."""

    def __init__(self) -> None:
        super().__init__("deepy", version("neoxargs"))
        self.planner = Planner()
        #: Address of a document -> what it was when it was last checked.
        self.edited: dict[str, answers.Edited] = {}

    def document(self, of: Any) -> TextDocument:
        """Return the document that a message is about."""
        return self.workspace.get_text_document(of.text_document.uri)

    def read(self, name: str) -> Text:
        """Return the text of a file: of one that is open, as it is in the editor. Raises Problems."""
        opened = map(self.workspace.get_text_document, self.edited)
        here = (each.source for each in opened if os.path.realpath(each.path) == os.path.realpath(name))
        text = next(here, None)
        return read_text(name) if text is None else Text(name, text)

    def check(self, document: TextDocument) -> None:
        """Find the problems of a document, and show them."""
        text = _text(document)
        if is_table(text):
            problems = answers.problems_of_table(text)
        else:
            before = self.edited[document.uri].runs if document.uri in self.edited else ()
            self.edited[document.uri] = answers.Edited(text, self.gpus, self.read, before)
            problems = self.edited[document.uri].problems
        found = [self.diagnostic(each, document) for each in problems]
        self.text_document_publish_diagnostics(
            lsp.PublishDiagnosticsParams(document.uri, found, version=document.version)
        )

    def diagnostic(self, problem: Problem, document: TextDocument) -> lsp.Diagnostic:
        """Return a problem as the editor shows it."""
        others = [
            lsp.Location(Path(place.file).resolve().as_uri(), _point(place.line, place.column))
            for place in problem.also
            if os.path.isfile(place.file)
        ]
        return lsp.Diagnostic(
            self.range(problem.where, document),
            "\n".join(filter(None, (sentence(problem), _hint(problem)))),
            SEVERITIES[problem.severity],
            code=problem.id,
            source="deepy",
            related_information=[lsp.DiagnosticRelatedInformation(other, "see here") for other in others],
        )

    def range(self, place: Place | None, document: TextDocument) -> lsp.Range:
        """Return the characters of a place, in the units that were agreed with the editor."""
        if place is None or not place.line:
            return _point(1, 1)
        line, begin = place.line - 1, place.column - 1
        characters = lsp.Range(lsp.Position(line, begin), lsp.Position(line, begin + max(1, place.width)))
        return document.position_codec.range_to_client_units(document.lines, characters)

    def location(self, place: Place) -> lsp.Location:
        """Return a place in any file."""
        uri = Path(place.file).resolve().as_uri()
        return lsp.Location(uri, self.range(place, self.workspace.get_text_document(uri)))

    def cursor(self, document: TextDocument, position: lsp.Position) -> tuple[Cursor, lsp.Position]:
        """Return what is at a position, and the position in characters."""
        lines = _lines(document)
        found = document.position_codec.position_from_client_units(lines, position)
        at = lsp.Position(found.line, found.character)
        return cursor_at([line.rstrip("\r\n") for line in lines], at.line, at.character), at


def serve() -> int:
    """Serve an editor until it ends."""
    server = Server()
    for add_features in (_documents, _words, _places, _plans, _corrections):
        add_features(server)
    server.start_io()
    return 0


def _documents(server: Server) -> None:
    @server.feature(lsp.INITIALIZE)
    def initialize(params: lsp.InitializeParams) -> None:
        options: Any = params.initialization_options or {}
        if isinstance(options, dict):
            server.gpus, server.planner.machine = options.get("gpus") or None, options.get("machine") or None

    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: Any) -> None:
        server.check(server.document(params))

    @server.feature(lsp.TEXT_DOCUMENT_DID_SAVE)
    def saved(params: lsp.DidSaveTextDocumentParams) -> None:
        # The other files may be of the same run, or this one its table.
        for uri in dict.fromkeys([*server.edited, params.text_document.uri]):
            server.check(server.workspace.get_text_document(uri))
        workspace = server.client_capabilities.workspace
        if workspace and workspace.code_lens and workspace.code_lens.refresh_support:
            server.workspace_code_lens_refresh(None)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: lsp.DidCloseTextDocumentParams) -> None:
        server.edited.pop(params.text_document.uri, None)
        server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(params.text_document.uri, []))


def _words(server: Server) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    def hover(params: lsp.HoverParams) -> lsp.Hover | None:
        document = server.document(params)
        edited = server.edited.get(document.uri)
        kind = _format_of_hover(server.client_capabilities)
        markdown = kind == lsp.MarkupKind.Markdown
        text = edited.described(server.cursor(document, params.position)[0], markdown) if edited else ""
        return lsp.Hover(lsp.MarkupContent(kind, text)) if text else None

    @server.feature(lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions(trigger_characters=[" ", ":"]))
    def complete(params: lsp.CompletionParams) -> lsp.CompletionList:
        document = server.document(params)
        cursor, at = server.cursor(document, params.position)
        characters = lsp.Range(lsp.Position(at.line, cursor.begin), at)
        replaced = document.position_codec.range_to_client_units(_lines(document), characters)
        kind = lsp.CompletionItemKind.Value if cursor.in_value else lsp.CompletionItemKind.Property
        after = "" if cursor.in_value else ": "
        items = [
            lsp.CompletionItem(
                each.word,
                kind=kind,
                detail=each.detail,
                documentation=each.meaning or None,
                text_edit=lsp.TextEdit(replaced, each.word + after),
            )
            for each in answers.completions(cursor)
        ]
        return lsp.CompletionList(False, items)


def _places(server: Server) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_DEFINITION)
    @server.feature(lsp.TEXT_DOCUMENT_DECLARATION)
    def declaration(params: Any) -> list[lsp.Location]:
        document = server.document(params)
        cursor, at = server.cursor(document, params.position)
        if edited := server.edited.get(document.uri):
            return [server.location(place) for place in edited.declarations(cursor)]
        if not is_table(_text(document)):
            return []
        files = answers.files_of_table_at(_text(document), _lines(document), at.line, at.character)
        return [server.location(Place(file, 0, 0)) for file in files]


def _plans(server: Server) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_CODE_LENS, lsp.CodeLensOptions(resolve_provider=True))
    def code_lenses(params: lsp.CodeLensParams) -> list[lsp.CodeLens]:
        edited, uri = server.edited.get(params.text_document.uri), params.text_document.uri
        runs = edited.runs[:MOST_RUNS] if edited and edited.is_ours else []
        return [lsp.CodeLens(_point(1, 1), data={"uri": uri, "run": run.name}) for run in runs]

    @server.feature(lsp.CODE_LENS_RESOLVE)
    async def code_lens(lens: lsp.CodeLens) -> lsp.CodeLens:
        data: Any = lens.data
        edited = server.edited.get(data["uri"])
        runs = [run for run in edited.runs if run.name == data["run"]] if edited else []
        # Clients show a command without a name as text.
        lens.command = lsp.Command(await server.planner.line(runs[0]) if runs else "", "")
        return lens


def _corrections(server: Server) -> None:
    @server.feature(
        lsp.TEXT_DOCUMENT_CODE_ACTION, lsp.CodeActionOptions(code_action_kinds=KINDS, resolve_provider=True)
    )
    def code_actions(params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        document, asked = server.document(params), params.range
        edited = server.edited.get(document.uri)
        if edited is None:
            return []
        actions = []
        for problem in edited.problems:
            shown = server.diagnostic(problem, document)
            inside = shown.range.start.line <= asked.end.line and shown.range.end.line >= asked.start.line
            after = edited.correction(problem) if inside else None
            if after is not None:
                title, safe = _hint(problem) or sentence(problem), all(edit.safe for edit in problem.edits)
                edit, kind = _replaced(document, after), lsp.CodeActionKind.QuickFix
                actions.append(lsp.CodeAction(title, kind, [shown], is_preferred=safe, edit=edit))
        for title, after in edited.renamed(asked.start.line):
            edit, kind = _replaced(document, after), lsp.CodeActionKind.RefactorRewrite
            actions.append(lsp.CodeAction(title, kind, (), is_preferred=False, edit=edit))
        if edited.is_fixable:  # its corrections are made only when they are asked for, because each is checked
            actions.append(lsp.CodeAction("correct all that deepy check --fix corrects", FIX_ALL, data=document.uri))
            if not _resolves(server.client_capabilities):
                fix_all(actions[-1])
        only = params.context.only
        return [each for each in actions if not only or any(_is_within(each.kind, kind) for kind in only)]

    @server.feature(lsp.CODE_ACTION_RESOLVE)
    def fix_all(action: lsp.CodeAction) -> lsp.CodeAction:
        uri: Any = action.data
        if uri and (edited := server.edited.get(uri)):
            action.edit = _replaced(server.workspace.get_text_document(uri), edited.fixed)
        return action


def _text(document: TextDocument) -> Text:
    return Text(document.path, document.source)


def _lines(document: TextDocument) -> list[str]:
    """Return the lines, also the one after the last line break."""
    return [*document.lines, ""]


def _replaced(document: TextDocument, after: str) -> lsp.WorkspaceEdit:
    whole = lsp.Range(lsp.Position(0, 0), lsp.Position(len(document.lines), 0))
    return lsp.WorkspaceEdit({document.uri: [lsp.TextEdit(whole, after)]})


def _resolves(client: lsp.ClientCapabilities) -> bool:
    """Return whether a client asks for the edit of an action once it is chosen."""
    action = client.text_document and client.text_document.code_action
    return bool(action and action.resolve_support and "edit" in action.resolve_support.properties)


def _format_of_hover(client: lsp.ClientCapabilities) -> lsp.MarkupKind:
    """Return what a client shows best: plain text if it does not say that it can show Markdown."""
    hover = client.text_document and client.text_document.hover
    return next(iter((hover and hover.content_format) or ()), lsp.MarkupKind.PlainText)


def _is_within(kind: str | None, wanted: str) -> bool:
    """Return whether a kind of action is another one or below it: `source.fixAll` is below `source`."""
    words = [each.value if isinstance(each, lsp.CodeActionKind) else each or "" for each in (kind, wanted)]
    return f"{words[0]}.".startswith(f"{words[1]}.")


def _hint(problem: Problem) -> str:
    hint: str = problem.to_json()["hint"]
    return hint


def _point(line: int, column: int) -> lsp.Range:
    start = lsp.Position(max(0, line - 1), max(0, column - 1))
    return lsp.Range(start, lsp.Position(start.line, start.character + 1))
