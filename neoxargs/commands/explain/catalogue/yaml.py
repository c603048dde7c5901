"""Problems of files that cannot be read, and of text that is not valid YAML."""

from __future__ import annotations

from neoxargs.commands.explain.catalogue.entry import Entry, row

PROBLEMS: dict[str, Entry] = {
    # files
    "file-missing": row(
        "A file named on the command line does not exist. Without this file, the run would use different values than "
        "intended."
    ),
    "directory-missing": row("The folder given with -d does not exist, so no file can be found in it."),
    "file-is-directory": row("The path is a folder, and deepy does not guess which of its files is meant."),
    "file-given-twice": row(
        "The same file is given twice, possibly through a link. One of the two arguments was probably meant to be a "
        "different file."
    ),
    "file-unreadable": row(
        "The operating system cannot read the file, because permissions are missing or a disk or network drive has "
        "failed."
    ),
    "file-too-long": row(
        "A file with so many lines, keys or values is training data or a vocabulary; a configuration has a few hundred."
    ),
    "file-too-large": row(
        "A configuration is a few kilobytes long. A file of many megabytes is data, and parsing it as YAML takes "
        "minutes."
    ),
    "file-not-utf8": row(
        "The file is not UTF-8. If its characters were decoded wrongly, values such as paths would change."
    ),
    "file-not-text": row("The file contains NUL bytes: it is a binary file, such as a checkpoint or a dataset."),
    "file-without-parameters": row(
        "The file is empty or contains only comments, so none of the intended values are set.",
        "# nothing",
    ),
    "file-not-a-mapping": row(
        "A configuration consists of lines of `key: value`. A list or plain text contains no parameters.",
        "- num_layers\n",
    ),
    # YAML
    "yaml-syntax": row("The text is not valid YAML, so its meaning is not defined."),
    "yaml-tab": row(
        "In YAML, only spaces may be used for indentation. The width of a tab depends on the editor, and so would the "
        "nesting.",
        "fp16:\n\tenabled: true\n",
    ),
    "yaml-indentation": row(
        "The indentation of a line determines its section. The indentation of this line matches no section, and a "
        "guess could put its value into the wrong section.",
        "fp16:\n    enabled: true\n  loss_scale: 0\n",
    ),
    "yaml-missing-colon": row(
        "Without `: `, YAML reads the line as a continuation of the value above it, or reports an error many lines "
        "later. The parameter would not be set.",
        "seed 1234\nlr: 0.001\n",
    ),
    "yaml-second-colon": row("A line has one key and one value. A second `: ` has no defined meaning.", "save: a: b\n"),
    "yaml-no-space-after-colon": row(
        "Without a space after the colon, YAML reads `lr:0.001` as one word, and no parameter is set.",
        "lr:0.001\nseed: 1\n",
    ),
    "yaml-missing-value": row("A value is missing inside brackets.", "attention_config: [, global]\n"),
    "yaml-missing-comma": row(
        "Inside brackets, entries are separated by commas. If a comma is missing, YAML reads two entries as one, or "
        "reports an error some lines later.",
        "fp16: {\n  enabled: true\n  loss_scale: 0\n}\n",
    ),
    "yaml-comma-outside-brackets": row(
        "Outside brackets, a comma is part of the value: `12,` is a string, not a number. After a quoted value, a "
        "comma is an error.",
        'save: "checkpoints",\n',
    ),
    "yaml-unclosed-bracket": row(
        "If a bracket is not closed, the rest of the file is read as part of the value.",
        "attention_config: [global, global\n",
    ),
    "yaml-unopened-bracket": row("A closing bracket has no matching opening bracket.", "attention_config: ]\n"),
    "yaml-wrong-bracket": row("A `]` cannot close a `{`, and a `}` cannot close a `[`.", "fp16: {enabled: true]\n"),
    "yaml-brace-after-keys": row(
        "A file consists either of lines of `key: value` or of one `{ }`; the two cannot be mixed.",
        'seed: 1\n{"lr": 0.001}\n',
    ),
    "yaml-unclosed-quote": row(
        "If a quote is not closed, the rest of the file is read as part of the value.", 'save: "checkpoints\n'
    ),
    "yaml-unknown-escape": row(
        "In double quotes, a backslash starts an escape sequence. A Windows path or a regular expression would become "
        "a different string.",
        'save: "C:\\data"\n',
    ),
    "yaml-reserved-character": row(
        "Some characters have a special meaning at the beginning of a value: `@`, `` ` ``, `%`, `&`, `*`, `!`.",
        "save: @checkpoints\n",
    ),
    "yaml-misplaced-list": row(
        "Lines of `key: value` and lines of `- item` cannot be mixed at the same indentation level.",
        "seed: 1\n- global\n",
    ),
    "yaml-text-after-value": row("There is text after a quoted value, so the value is ambiguous.", "save: 'a' b\n"),
    "yaml-text-after-end": row("There is text after the closing `}` of the configuration.", '{"seed": 1}\nlr\n'),
    "yaml-directive": row(
        "A line that starts with `%` is an instruction to the YAML parser.", "%YAML 3.0\n---\nseed: 1\n"
    ),
    "yaml-duplicate-anchor": row("Two values have the same anchor `&name`, so `*name` is ambiguous."),
    "yaml-unknown-alias": row(
        "`*name` repeats the value with the anchor `&name`, but no value has this anchor.", "save: *folder\n"
    ),
    "yaml-alias-inside-itself": row(
        "An alias inside the value that it stands for would make the value infinite.",
        "deepspeed_extra_args: &a {b: *a}\n",
    ),
    "yaml-too-many-aliases": row(
        "A few lines of nested aliases can expand to billions of values and fill the host's memory."
    ),
    "yaml-merge-key-needs-mapping": row(
        "`<<` merges the keys of another mapping into this one. The value given here has no keys.", "<<: 3\n"
    ),
    "yaml-nesting-too-deep": row(
        "No parameter is nested this deeply; usually a bracket was opened and not closed.",
        f"attention_config: {'[' * 40}{']' * 40}\n",
    ),
    "yaml-control-character": row(
        "A control character is invisible in an editor, but programs read it as part of the value."
    ),
    "yaml-second-document": row(
        "`---` starts a second document, so it is unclear which of the two documents is the configuration.",
        "seed: 1\n---\nseed: 2\n",
    ),
    "yaml-type-tag": row(
        "A tag such as `!!python/object` can make a YAML parser run code. No configuration value needs a tag.",
        "seed: !!str 1\n",
    ),
    "yaml-key-not-a-name": row(
        "A key must be a parameter name. An empty key is not a name, and YAML reads `on`, `null` and numbers "
        "as values of other types.",
        "on: true\n",
    ),
    "yaml-variable": row(
        "YAML does not expand variables: the path would literally be `${HOME}/data`.", "save: {${HOME}/data}\n"
    ),
    "yaml-ellipsis": row("`...` stands for values that documentation leaves out; a run needs the values themselves."),
    "yaml-equals-sign": row(
        "`key = value` is Python or shell syntax. YAML reads it as one word, and no parameter would be set.",
        "seed = 1\nlr: 0.001\n",
    ),
    "yaml-flag": row(
        "The line is a command-line flag such as `--lr 0.001`. In a file, it is written as `key: value`.",
        "--lr 0.001\n",
    ),
    "yaml-printed-output": row(
        "The text is the list of arguments that GPT-NeoX prints when it starts. The list includes derived values. If "
        "it were used as a configuration, all derived values would be set explicitly."
    ),
    "yaml-markdown": row("The file is a Markdown page that contains a configuration.", "```yaml\nseed: 1\n```\n"),
    "yaml-git-conflict": row(
        "Git marks conflicting versions of a file with these lines; one of the versions has to be chosen.",
        "<<<<<<< HEAD\nseed: 1\n=======\nseed: 2\n>>>>>>> other\n",
    ),
    "yaml-foreign-comment": row(
        "`//` starts a comment in other languages; in YAML, a comment starts with `#`.", "// note\nseed: 1\n"
    ),
    "yaml-foreign-space": row(
        "The line contains a character that looks like a space but is a different character, often copied from a word "
        "processor or a web page.",
        "seed:\u00a01\n",
    ),
    "yaml-foreign-colon": row(
        "The colon is a full-width colon, as typed on a Chinese or Japanese keyboard, which YAML does not read as a "
        "colon.",
        "seed\uff1a 1\nlr: 0.001\n",
    ),
}
