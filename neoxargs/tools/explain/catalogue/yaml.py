"""Files that cannot be read, and text that is no YAML."""

from __future__ import annotations

from neoxargs.tools.explain.catalogue.entry import Entry, row

PROBLEMS: dict[str, Entry] = {
    # files
    "file-missing": row(
        "A file that is named on the command line does not exist. A run without it would start with other values than "
        "were asked for, or with none."
    ),
    "directory-missing": row("The folder that -d names does not exist, so no file can be found in it."),
    "file-is-directory": row("A folder is named where a file is meant; which of its files to read is not guessed."),
    "file-given-twice": row(
        "The same file is named twice, perhaps through a link. One of the two was meant to be another file."
    ),
    "file-unreadable": row("The operating system does not let the file be read: permissions, a disk, a network drive."),
    "file-too-large": row(
        "A configuration has some kilobytes. A file of many megabytes is data, and reading it as YAML takes minutes."
    ),
    "file-not-utf8": row(
        "The file is not UTF-8, so its letters could be read as others: paths and names would be wrong on the ranks."
    ),
    "file-not-text": row("The file has NUL bytes in it: it is a binary file, such as a checkpoint or a dataset."),
    "file-without-parameters": row(
        "The file is empty or has only comments. A run that was meant to read something from it would not.", "# nothing"
    ),
    "file-not-a-mapping": row(
        "A configuration is lines of `key: value`. A list or plain text has no parameters in it.", "- num_layers\n"
    ),
    # YAML
    "yaml-syntax": row("The text is not YAML, so what it means cannot be told."),
    "yaml-tab": row(
        "YAML is indented by spaces only. How wide a tab is differs between editors, and so would the nesting.",
        "fp16:\n\tenabled: true\n",
    ),
    "yaml-indentation": row(
        "The indentation of a line says which section it belongs to. A line between two columns belongs to none, and a "
        "guess would put a value into the wrong section.",
        "fp16:\n    enabled: true\n  loss_scale: 0\n",
    ),
    "yaml-missing-colon": row(
        "A line without `: ` is part of the value above it to YAML, or an error far below it. Its parameter would be "
        "left out of the run.",
        "seed 1234\nlr: 0.001\n",
    ),
    "yaml-second-colon": row(
        "A line has one key and one value. What a second `: ` means is not defined.", "save: a: b\n"
    ),
    "yaml-no-space-after-colon": row(
        "Without a space behind the colon, `lr:0.001` is one word to YAML, and no parameter is set.",
        "lr:0.001\nseed: 1\n",
    ),
    "yaml-missing-value": row("A value is missing inside of brackets.", "attention_config: [, global]\n"),
    "yaml-missing-comma": row(
        "Inside of brackets a comma stands between two entries. Without it YAML reads both as one, or gives up some "
        "lines below.",
        "fp16: {\n  enabled: true\n  loss_scale: 0\n}\n",
    ),
    "yaml-comma-outside-brackets": row(
        "Outside of brackets a comma is part of the value, so `12,` is a text and no number; after a quoted value it "
        "ends the file.",
        'save: "checkpoints",\n',
    ),
    "yaml-unclosed-bracket": row(
        "A bracket that is never closed takes in the rest of the file.", "attention_config: [global, global\n"
    ),
    "yaml-unopened-bracket": row("A bracket closes what was never opened.", "attention_config: ]\n"),
    "yaml-wrong-bracket": row("A `]` cannot close a `{`, nor a `}` a `[`.", "fp16: {enabled: true]\n"),
    "yaml-brace-after-keys": row(
        "A file is either lines of `key: value` or one `{ }`. What comes after the one does not belong to the other.",
        'seed: 1\n{"lr": 0.001}\n',
    ),
    "yaml-unclosed-quote": row("A quote that is never closed takes in the rest of the file.", 'save: "checkpoints\n'),
    "yaml-unknown-escape": row(
        "In double quotes a backslash begins an escape. A Windows path or a pattern would become another text.",
        'save: "C:\\data"\n',
    ),
    "yaml-reserved-character": row(
        "Some characters have a meaning of their own at the beginning of a value: `@`, `` ` ``, `%`, `&`, `*`, `!`.",
        "save: @checkpoints\n",
    ),
    "yaml-misplaced-list": row(
        "Lines of `key: value` and lines of `- item` cannot stand at one level: one of them belongs to something else.",
        "seed: 1\n- global\n",
    ),
    "yaml-text-after-value": row("Text follows behind a quoted value; only one of them can be meant.", "save: 'a' b\n"),
    "yaml-text-after-end": row("Text follows behind the `{ }` that is the whole configuration.", '{"seed": 1}\nlr\n'),
    "yaml-directive": row(
        "A line that begins with `%` is an instruction to the YAML parser.", "%YAML 3.0\n---\nseed: 1\n"
    ),
    "yaml-duplicate-anchor": row("Two values are marked by the same `&name`, and `*name` could mean either."),
    "yaml-unknown-alias": row(
        "`*name` repeats the value that `&name` marked before; here nothing did.", "save: *folder\n"
    ),
    "yaml-alias-inside-itself": row("A value that contains itself has no end.", "deepspeed_extra_args: &a {b: *a}\n"),
    "yaml-too-many-aliases": row(
        "A few lines of aliases that repeat each other unfold to billions of values, which fill the memory of the host."
    ),
    "yaml-merge-key-needs-mapping": row(
        "`<<` brings the keys of another mapping in. What has no keys brings nothing.", "<<: 3\n"
    ),
    "yaml-nesting-too-deep": row(
        "No parameter is nested so deeply; most often a bracket was opened and never closed.",
        f"attention_config: {'[' * 40}{']' * 40}\n",
    ),
    "yaml-control-character": row("A control character is invisible in an editor, and part of the value to a program."),
    "yaml-second-document": row(
        "`---` begins a second document. Which of the two is the configuration cannot be told.",
        "seed: 1\n---\nseed: 2\n",
    ),
    "yaml-type-tag": row(
        "A tag such as `!!python/object` can make a YAML parser run code. Values need none.", "seed: !!str 1\n"
    ),
    "yaml-key-not-a-name": row(
        "Keys are names of parameters. `on`, `null` or a number as a key is something else to YAML than it looks.",
        "on: true\n",
    ),
    "yaml-variable": row(
        "YAML does not fill in variables: a path would be `${HOME}/data`, letter by letter.", "save: {${HOME}/data}\n"
    ),
    "yaml-ellipsis": row("`...` stands in documentation for what was left out there; a run needs the values."),
    "yaml-equals-sign": row(
        "`key = value` is Python or a shell, and one word to YAML: no parameter would be set.", "seed = 1\nlr: 0.001\n"
    ),
    "yaml-flag": row(
        "A line is a command line flag, such as --lr 0.001; in a file it is `key: value`.", "--lr 0.001\n"
    ),
    "yaml-printed-output": row(
        "The text is what GPT-NeoX prints of its arguments at the start, with derived values among the written ones. "
        "As a configuration it would pin all of them."
    ),
    "yaml-markdown": row("The file is a page of Markdown around a configuration.", "```yaml\nseed: 1\n```\n"),
    "yaml-git-conflict": row(
        "git leaves these marks where two versions of a file conflict; which of the two is meant has to be chosen.",
        "<<<<<<< HEAD\nseed: 1\n=======\nseed: 2\n>>>>>>> other\n",
    ),
    "yaml-foreign-comment": row("`//` begins a comment in other languages; YAML has `#`.", "// note\nseed: 1\n"),
    "yaml-foreign-space": row(
        "The line has a space in it that looks like one and is another character, from a word processor or a web page.",
        "seed:\u00a01\n",
    ),
    "yaml-foreign-colon": row("The colon is that of a Chinese or Japanese keyboard.", "seed\uff1a 1\nlr: 0.001\n"),
}
