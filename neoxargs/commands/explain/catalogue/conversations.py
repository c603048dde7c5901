"""Problems of `deepy data --chat`, and of GPT-NeoX's flags that `deepy data` accepts."""

from __future__ import annotations

from neoxargs.commands.explain.catalogue.entry import Entry, row

PROBLEMS: dict[str, Entry] = {
    "chat-file-not-json-lines": row("Conversations are read from files with one JSON object per line."),
    "chat-form-unknown": row(
        "deepy recognises how a dataset stores conversations by the names of its keys. It does not know the keys on "
        "this line, so --json-key has to say which of them contains the conversation."
    ),
    "chat-line-malformed": row(
        "The line is JSON, but no chat template can render it as a conversation, for example because it contains an "
        "image, or a message without a role."
    ),
    "chat-empty": row("Every conversation was left out, so there is nothing to train on."),
    "chat-template-missing": row(
        "A chat template turns messages into text. The tokenizer's folder contains no chat template, so you have to "
        "choose one."
    ),
    "chat-template-unknown": row("There is no chat template with this name, and no file with this name either."),
    "chat-template-unreadable": row("The file with the chat template is not UTF-8, or cannot be read."),
    "chat-template-not-jinja": row("Chat templates are written in Jinja. This template has a syntax error."),
    "chat-template-not-compiled": row(
        "Chat templates are downloaded, so they have limits of time, memory and nesting that no real template reaches. "
        "Jinja computes constant expressions when it compiles a template, so a template can reach them then, too."
    ),
    "chat-template-failed": row(
        "The chat template rejects this conversation, raises an error, takes too long, or does not show which part of "
        "the text belongs to which message. In each case, correct labels cannot be written."
    ),
    "chat-template-without-marks": row(
        "With `--mask-by marks`, only the text between a template's `{% generation %}` marks is trained on. This "
        "template has no such marks, so there would be nothing to train on."
    ),
    "chat-options-contradict": row(
        "One of the command's options has an invalid value, or would have no effect in combination with the others."
    ),
    "eos-token-not-in-vocabulary": row(
        "The tokenizer's folder names an end token that its vocabulary does not have, so documents and "
        "conversations could not end."
    ),
    "tokenizer-config-not-json": row("The file in the tokenizer's folder that names the special tokens is damaged."),
    "tokenizer-folder-missing": row("The folder of the tokenizer does not exist, or has no tokenizer.json."),
    "mask-token-not-ids": row(
        "The delimiter is searched for in a document's token ids, so it must itself be given as token ids."
    ),
    "neox-flag-refused": row(
        "This flag of GPT-NeoX's preprocessing tools has no equivalent. If the flag were ignored, the token files "
        "would not contain what the flag asks for."
    ),
}
