"""`deepy lsp`: the checker in an editor, as a language server."""
