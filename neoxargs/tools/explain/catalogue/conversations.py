"""Problems of `deepy data --chat`, and of GPT-NeoX's flags that `deepy data` accepts."""

from __future__ import annotations

from neoxargs.tools.explain.catalogue.entry import Entry, row

PROBLEMS: dict[str, Entry] = {
    "chat-file-not-json-lines": row("Conversations are read from files with one JSON object per line."),
    "chat-form-unknown": row(
        "The names of the keys tell how a data set stores its conversations. This line has none of the known names, so "
        "the keys have to be given."
    ),
    "chat-line-malformed": row(
        "The line is JSON, but not a conversation that a chat template can render, such as one with an image or with a "
        "message without a role."
    ),
    "chat-empty": row("Every conversation was left out, so there is nothing to train on."),
    "chat-template-missing": row(
        "A chat template turns messages into text. The tokenizer's folder has none, so one has to be chosen."
    ),
    "chat-template-unknown": row("There is no chat template with this name, and no file either."),
    "chat-template-unreadable": row("The file with the chat template is not UTF-8, or may not be read."),
    "chat-template-not-jinja": row("Chat templates are written in Jinja; this one has a mistake in its syntax."),
    "chat-template-failed": row(
        "The chat template reports that it does not support this conversation, fails, takes too long, or hides which "
        "part of the text belongs to which message. Labels would be wrong."
    ),
    "chat-template-without-marks": row(
        "The trained text is to be taken from the template's generation marks, but it has none, so nothing would be "
        "trained."
    ),
    "chat-options-contradict": row("One of these options would have no effect with the others."),
    "eos-token-not-in-vocabulary": row(
        "The tokenizer's folder names an end token that its vocabulary does not have, so conversations could not end."
    ),
    "tokenizer-config-not-json": row("A file in the tokenizer's folder that names its special tokens is damaged."),
    "tokenizer-folder-missing": row("The folder of the tokenizer does not exist, or has no tokenizer.json."),
    "mask-token-not-ids": row("The delimiter is found in the token ids of a document, so it is given as token ids."),
    "neox-flag-refused": row(
        "A flag of GPT-NeoX's preprocessing tools without equivalent. If it were ignored, the files would be other "
        "than expected."
    ),
}
