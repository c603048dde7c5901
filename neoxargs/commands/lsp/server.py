"""The language server: diagnostics as one types, quick fixes, descriptions and completions (docs/editors.md).

Speaks over standard input and output. A file is checked with the other files of its runs, as the repository's table
names them: syntax, keys, values and the rules between them.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer
from pygls.workspace import TextDocument

from neoxargs.base.files import Text
from neoxargs.base.problems import Place, Problem, sentence
from neoxargs.commands.lsp import answers
from neoxargs.commands.lsp.cursor import Cursor, cursor_at

SEVERITIES = {"error": lsp.DiagnosticSeverity.Error, "warning": lsp.DiagnosticSeverity.Warning}


class Server(LanguageServer):
    """The server of one editor."""

    gpus: int | None = None
    """GPUs to assume, the setting `gpus`; None: those of this machine."""

    def __init__(self) -> None:
        super().__init__("deepy", version("neoxargs"))
        #: Address of a document -> its problems when it was last checked.
        self.problems: dict[str, list[Problem]] = {}

    def check(self, document: TextDocument) -> None:
        """Find the problems of a document, and show them."""
        text = Text(document.path, document.source)
        self.problems[document.uri] = answers.problems_of(text, self.gpus)
        found = [self.diagnostic(each, document) for each in self.problems[document.uri]]
        self.text_document_publish_diagnostics(
            lsp.PublishDiagnosticsParams(document.uri, found, version=document.version)
        )

    def diagnostic(self, problem: Problem, document: TextDocument) -> lsp.Diagnostic:
        """Return a problem as the editor shows it."""
        related = [
            lsp.DiagnosticRelatedInformation(lsp.Location(Path(file).as_uri(), _point(line, column)), "see here")
            for file, line, column in answers.other_places(problem)
        ]
        return lsp.Diagnostic(
            self.range(problem.where, document),
            "\n".join(filter(None, (sentence(problem), _hint(problem)))),
            SEVERITIES[problem.severity],
            code=problem.id,
            source="deepy",
            related_information=related,
        )

    def range(self, place: Place | None, document: TextDocument) -> lsp.Range:
        """Return the characters of a place, in the units that were agreed with the editor."""
        if place is None or not place.line:
            return _point(1, 1)
        line, begin = place.line - 1, place.column - 1
        characters = lsp.Range(lsp.Position(line, begin), lsp.Position(line, begin + max(1, place.width)))
        return document.position_codec.range_to_client_units(document.lines, characters)

    def cursor(self, document: TextDocument, position: lsp.Position) -> tuple[Cursor, lsp.Position]:
        """Return what is at a position, and the position in characters."""
        lines = [*document.lines, ""]  # the one after the last line break
        found = document.position_codec.position_from_client_units(lines, position)
        at = lsp.Position(found.line, found.character)
        return cursor_at([line.rstrip("\r\n") for line in lines], at.line, at.character), at


def serve() -> int:
    """Serve an editor until it ends."""
    make_server().start_io()
    return 0


def make_server() -> Server:
    """Return a server with all features."""
    server = Server()

    @server.feature(lsp.INITIALIZE)
    def initialize(params: lsp.InitializeParams) -> None:
        options: Any = params.initialization_options or {}
        server.gpus = options.get("gpus") if isinstance(options, dict) else None

    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    @server.feature(lsp.TEXT_DOCUMENT_DID_SAVE)
    def changed(params: Any) -> None:
        server.check(server.workspace.get_text_document(params.text_document.uri))

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: lsp.DidCloseTextDocumentParams) -> None:
        server.problems.pop(params.text_document.uri, None)
        server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(params.text_document.uri, []))

    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    def hover(params: lsp.HoverParams) -> lsp.Hover | None:
        document = server.workspace.get_text_document(params.text_document.uri)
        text = answers.described(server.cursor(document, params.position)[0], document.path, server.gpus)
        return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, f"```text\n{text}\n```")) if text else None

    @server.feature(lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions(trigger_characters=[" ", ":"]))
    def complete(params: lsp.CompletionParams) -> lsp.CompletionList:
        document = server.workspace.get_text_document(params.text_document.uri)
        cursor, at = server.cursor(document, params.position)
        characters = lsp.Range(lsp.Position(at.line, cursor.begin), at)
        replaced = document.position_codec.range_to_client_units([*document.lines, ""], characters)
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

    @server.feature(
        lsp.TEXT_DOCUMENT_CODE_ACTION, lsp.CodeActionOptions(code_action_kinds=[lsp.CodeActionKind.QuickFix])
    )
    def code_actions(params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        document = server.workspace.get_text_document(params.text_document.uri)
        text = Text(document.path, document.source)
        whole = lsp.Range(lsp.Position(0, 0), lsp.Position(len(document.lines), 0))
        actions = []
        for problem in server.problems.get(document.uri, ()):
            shown = server.diagnostic(problem, document)
            inside = shown.range.start.line <= params.range.end.line and shown.range.end.line >= params.range.start.line
            after = answers.correction(text, problem) if inside else None
            if after is not None:
                edit = lsp.WorkspaceEdit({document.uri: [lsp.TextEdit(whole, after)]})
                safe = all(edit.safe for edit in problem.edits)
                title = _hint(problem) or sentence(problem)
                actions.append(
                    lsp.CodeAction(title, lsp.CodeActionKind.QuickFix, [shown], is_preferred=safe, edit=edit)
                )
        return actions

    return server


def _hint(problem: Problem) -> str:
    hint: str = problem.to_json()["hint"]
    return hint


def _point(line: int, column: int) -> lsp.Range:
    start = lsp.Position(max(0, line - 1), max(0, column - 1))
    return lsp.Range(start, lsp.Position(start.line, start.character + 1))
