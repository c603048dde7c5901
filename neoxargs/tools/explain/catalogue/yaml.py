"""Problems of files that cannot be read, and of text that is not valid YAML."""

from __future__ import annotations

from neoxargs.tools.explain.catalogue.entry import Entry, row

PROBLEMS: dict[str, Entry] = {
    # files
    "file-missing": row(
        "A file named on the command line does not exist. Without this file the run would use different values than "
        "intended."
    ),
    "directory-missing": row("The folder given with -d does not exist, so no file can be found in it."),
    "file-is-directory": row("The name is that of a folder, and deepy does not guess which of its files is meant."),
    "file-given-twice": row(
        "The same file is named twice, possibly through a link. One of the two was probably meant to be a different "
        "file."
    ),
    "file-unreadable": row(
        "The operating system does not allow reading the file: missing permissions, or a failing disk or network drive."
    ),
    "file-too-large": row(
        "A configuration has a few kilobytes. A file of many megabytes is data, and parsing it as YAML takes minutes."
    ),
    "file-not-utf8": row(
        "The file is not UTF-8, so its characters could be decoded wrongly: paths on the ranks would be wrong."
    ),
    "file-not-text": row("The file contains NUL bytes: it is a binary file, such as a checkpoint or a dataset."),
    "file-without-parameters": row(
        "The file is empty or contains only comments, so it sets none of the values that it was meant to set.",
        "# nothing",
    ),
    "file-not-a-mapping": row(
        "A configuration is lines of `key: value`. A list or plain text contains no parameters.", "- num_layers\n"
    ),
    # YAML
    "yaml-syntax": row("The text is not valid YAML, so its meaning is not defined."),
    "yaml-tab": row(
        "YAML is indented with spaces only. The width of a tab depends on the editor, and the nesting would too.",
        "fp16:\n\tenabled: true\n",
    ),
    "yaml-indentation": row(
        "The indentation of a line determines its section. This line matches the indentation of no section, and a "
        "guess could put the value into the wrong one.",
        "fp16:\n    enabled: true\n  loss_scale: 0\n",
    ),
    "yaml-missing-colon": row(
        "Without `: ` YAML reads the line as a continuation of the value above it, or reports an error many lines "
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
        "Inside brackets entries are separated by commas. Without one, YAML reads two entries as one, or reports an "
        "error some lines later.",
        "fp16: {\n  enabled: true\n  loss_scale: 0\n}\n",
    ),
    "yaml-comma-outside-brackets": row(
        "Outside brackets a comma is part of the value: `12,` is a string, not a number. After a quoted value, a comma "
        "is an error.",
        'save: "checkpoints",\n',
    ),
    "yaml-unclosed-bracket": row(
        "A bracket that is not closed includes the rest of the file.", "attention_config: [global, global\n"
    ),
    "yaml-unopened-bracket": row("A bracket is closed that was not opened.", "attention_config: ]\n"),
    "yaml-wrong-bracket": row("A `]` cannot close a `{`, and a `}` cannot close a `[`.", "fp16: {enabled: true]\n"),
    "yaml-brace-after-keys": row(
        "A file is either lines of `key: value` or one `{ }`; the two cannot be mixed.",
        'seed: 1\n{"lr": 0.001}\n',
    ),
    "yaml-unclosed-quote": row("A quote that is not closed includes the rest of the file.", 'save: "checkpoints\n'),
    "yaml-unknown-escape": row(
        "In double quotes a backslash starts an escape sequence. A Windows path or a regular expression would become "
        "a different string.",
        'save: "C:\\data"\n',
    ),
    "yaml-reserved-character": row(
        "Some characters have a special meaning at the beginning of a value: `@`, `` ` ``, `%`, `&`, `*`, `!`.",
        "save: @checkpoints\n",
    ),
    "yaml-misplaced-list": row(
        "Lines of `key: value` and lines of `- item` cannot be at the same level of indentation.",
        "seed: 1\n- global\n",
    ),
    "yaml-text-after-value": row("There is text after a quoted value, so the value is ambiguous.", "save: 'a' b\n"),
    "yaml-text-after-end": row("There is text after the `{ }` that contains the configuration.", '{"seed": 1}\nlr\n'),
    "yaml-directive": row(
        "A line that starts with `%` is an instruction to the YAML parser.", "%YAML 3.0\n---\nseed: 1\n"
    ),
    "yaml-duplicate-anchor": row("Two values have the same anchor `&name`, so `*name` is ambiguous."),
    "yaml-unknown-alias": row(
        "`*name` repeats the value that has the anchor `&name`, and no value has it.", "save: *folder\n"
    ),
    "yaml-alias-inside-itself": row("A value that contains itself is infinite.", "deepspeed_extra_args: &a {b: *a}\n"),
    "yaml-too-many-aliases": row(
        "A few lines of nested aliases can expand to billions of values, which fill the memory of the host."
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
        "`---` starts a second document, and it is not defined which of them is the configuration.",
        "seed: 1\n---\nseed: 2\n",
    ),
    "yaml-type-tag": row(
        "A tag such as `!!python/object` can make a YAML parser run code. No value of a configuration needs a tag.",
        "seed: !!str 1\n",
    ),
    "yaml-key-not-a-name": row(
        "Keys are names of parameters. YAML does not read `on`, `null` or a number as a name.",
        "on: true\n",
    ),
    "yaml-variable": row(
        "YAML does not expand variables: the path would literally be `${HOME}/data`.", "save: {${HOME}/data}\n"
    ),
    "yaml-ellipsis": row("`...` marks values that documentation leaves out; a run needs the values themselves."),
    "yaml-equals-sign": row(
        "`key = value` is Python or shell syntax. YAML reads it as one word, and no parameter would be set.",
        "seed = 1\nlr: 0.001\n",
    ),
    "yaml-flag": row(
        "The line is a command-line flag such as --lr 0.001; in a file it is written as `key: value`.", "--lr 0.001\n"
    ),
    "yaml-printed-output": row(
        "The text is the list of arguments that GPT-NeoX prints when it starts, which includes derived values. As a "
        "configuration it would fix all of them."
    ),
    "yaml-markdown": row("The file is a Markdown page that contains a configuration.", "```yaml\nseed: 1\n```\n"),
    "yaml-git-conflict": row(
        "git marks conflicting versions of a file with these lines; one of the versions has to be chosen.",
        "<<<<<<< HEAD\nseed: 1\n=======\nseed: 2\n>>>>>>> other\n",
    ),
    "yaml-foreign-comment": row(
        "`//` starts a comment in other languages; a comment in YAML starts with `#`.", "// note\nseed: 1\n"
    ),
    "yaml-foreign-space": row(
        "The line contains a character that looks like a space but is a different character, copied from a word "
        "processor or a web page.",
        "seed:\u00a01\n",
    ),
    "yaml-foreign-colon": row(
        "The colon is a full-width one, as typed on a Chinese or Japanese keyboard.", "seed\uff1a 1\nlr: 0.001\n"
    ),
}
