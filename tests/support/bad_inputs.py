"""Typical mistakes, one row each: a title, the content of the files, and the arguments of the command line."""

from __future__ import annotations

from typing import NamedTuple

GOOD = """\
num_layers: 4
hidden_size: 64
num_attention_heads: 4
seq_length: 128
max_position_embeddings: 128
train_micro_batch_size_per_gpu: 2
train_iters: 100
"""


class Bad(NamedTuple):
    """A mistake. files: name -> content; paths: the FILEs of the command line; sets: its `--set`s."""

    title: str
    files: dict[str, str | bytes]
    paths: tuple[str, ...] = ("my",)
    sets: tuple[str, ...] = ()
    directory: str | None = None
    gpus: int = 8


def with_line(title: str, text: str) -> Bad:
    """GOOD with this text appended."""
    return Bad(title, {"my.yml": GOOD + text})


def file_with(title: str, text: str | bytes, name: str = "my.yml") -> Bad:
    """A file with this content."""
    return Bad(title, {name: text})


def two_files(title: str, first: str, second: str) -> Bad:
    """GOOD with `first` appended, and a second file."""
    return Bad(title, {"my.yml": GOOD + first, "more.yml": second}, ("my", "more"))


def with_set(title: str, *sets: str, text: str = "") -> Bad:
    """GOOD with `text` appended, and `--set`s."""
    return Bad(title, {"my.yml": GOOD + text}, sets=sets)


def in_folder(title: str, *paths: str, directory: str | None = None) -> Bad:
    """FILEs of the command line, in a folder with several configurations."""
    present: dict[str, str | bytes] = {"my.yml": GOOD, "configs/125M.yml": GOOD, "configs/350M.yml": GOOD}
    return Bad(
        title,
        {**present, "configs/.125N.yml": GOOD, "configs/tune.json": "{}", "empty/.keep": ""},
        paths,
        directory=directory,
    )


def without_lines(title: str, *names: str, text: str = "") -> Bad:
    """GOOD without the lines of these keys, and with `text` appended."""
    lines = [row for row in GOOD.splitlines(keepends=True) if row.split(":")[0] not in names]
    return Bad(title, {"my.yml": "".join(lines) + text})


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(['*' + old] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)

FILES = [
    in_folder("missing file", "125N", directory="configs"),
    in_folder("missing file with no similar name", "llama.yml", directory="configs"),
    in_folder("file in a missing folder", "configs/models/125M.yml"),
    in_folder("missing file in a folder without configurations", "125M", directory="empty"),
    in_folder("two missing files", "mine.yml", "theirs.yml"),
    in_folder("missing folder for -d", "125M", directory="config"),
    in_folder("a directory instead of a file", "configs"),
    in_folder("the same file twice", "my.yml", "my"),
    in_folder("file name with a NUL", "m\0y"),
    file_with("20 MB", b"# " + b"x" * 20_000_000),
    file_with("binary", b"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00"),
    file_with("NUL bytes in text", b"num_layers: 4\x00\n"),
    file_with("UTF-16", "num_layers: 4\n".encode("utf-16")),
    file_with("Latin-1", "num_layers: 4\nsave: Modèle  # the model\n".encode("latin-1")),
]

SYNTAX = [
    file_with("empty file", ""),
    file_with("only comments", "# num_layers: 4\n"),
    file_with("only null", "null\n"),
    file_with("a list", "- num_layers: 4\n- hidden_size: 64\n"),
    file_with("a sentence", "num_layers of 4\n"),
    file_with("no space after the colon", "num_layers:4\nhidden_size:64\n"),
    file_with("an ini file", "num_layers = 4\nhidden_size = 64\n"),
    file_with("a Python file", 'import os\n\nCONFIG = {"num_layers": 4}\n'),
    with_line("no space after the colon, and more lines", "log_interval:4\nseed: 1\n"),
    with_line("no space after the colon in a section", "fp16:\n  enabled:true\n  loss_scale: 0\n"),
    with_line("no space after the colon in braces", "fp16: {enabled:true}\n"),
    with_line("an equals sign between good lines", "log_interval = 4\nseed: 1\n"),
    with_line("a flag among the lines", "--log-interval 4\nseed: 1\n"),
    with_line("no-break space after the colon", "seed:\u00a01\n"),
    with_line("full-width colon", "seed\uff1a 1\n"),
    with_line("two colons in a row", "seed:: 1\n"),
    with_line("comment with //", "// the seed\nseed: 1\n"),
    with_line("git conflict markers", "<<<<<<< HEAD\nseed: 1\n=======\nseed: 2\n>>>>>>> other\n"),
    with_line("a list item among the keys", "- seed: 1\n"),
    with_line("JSON after lines of YAML", '{"seed": 1}\n'),
    with_line("JSON without its outer braces", '"fp16": {\n  "enabled": true\n},\n"seed": 1\n'),
    file_with("TOML", "[model]\nnum_layers = 4\n"),
    file_with("a block of Markdown", "```yaml\nnum_layers: 4\n```\n"),
    file_with("indented first line", "  num_layers: 4\nhidden_size: 64\n"),
    with_line("a section whose keys are not indented", "fp16:\nenabled: true\n"),
    with_line("tab as indentation", "fp16:\n\tenabled: true\n"),
    with_line("a key without a colon", "checkpoint_activations\nseed: 1\n"),
    with_line("second colon in a value", "data_path: s3: bucket\n"),
    with_line("a key indented by accident", " seed: 1\n"),
    with_line("a key indented differently", "fp16:\n    enabled: true\n  loss_scale: 0\n"),
    with_line("unclosed flow mapping", "fp16: {enabled: true\nseed: 1\n"),
    with_line("unclosed flow mapping at the end of the file", "fp16: {enabled: true"),
    with_line("list closed by a brace", "zero_optimization: {stage: [1, 2}\n"),
    file_with("list closed too early", '{\n  "train_data_paths": [\n    "a",]\n    "b",\n  ],\n}\n'),
    with_line("extra bracket", "seed: ]\n"),
    with_line("extra comma", "train_data_paths: [a,, b]\n"),
    with_line("unclosed quote", 'save: "models\nseed: 1\n'),
    with_line("quote inside quotes", "wandb_group: 'it's mine'\n"),
    with_line("text after a quoted value", 'save: "models" here\n'),
    with_line("a Windows path in double quotes", 'data_path: "C:\\data"\n'),
    with_line("an at sign", "save: @models\n"),
    with_line("a percent sign", "save: %models\n"),
    with_line("a star", "include: *\n"),
    with_line("a list on the line of its key", "train_data_paths: - a\n"),
    file_with("a list and then keys", "- num_layers: 4\nhidden_size: 64\n"),
    file_with("Python before the configuration", "import yaml\n\nnum_layers: 4\n"),
    with_line("a control character", "save: mod\x07els\n"),
    with_line("half of a surrogate pair", 'save: "\\ud83d"\n'),
    file_with("JSON with a missing comma", '{"num_layers": 4\n "hidden_size": 64}', "my.json"),
    file_with("JSON with a missing colon", '{"num_layers" 4,\n "hidden_size": 64}', "my.json"),
    file_with("JSON with an equals sign", '{"num_layers"= 4}', "my.json"),
    file_with("unclosed JSON", '{"num_layers": 4,\n "hidden_size": 64\n', "my.json"),
    file_with("JSON with an extra brace", '{"num_layers": 4}}\n', "my.json"),
    file_with("text after JSON", '{"num_layers": 4}\nhidden_size: 64\n', "my.json"),
    file_with("two documents", "num_layers: 4\n---\nhidden_size: 64\n"),
    file_with("a YAML directive", "%YAML 3.0\n---\nnum_layers: 4\n"),
    with_line("a Python object", "save: !!python/object/apply:os.system [echo]\n"),
    with_line("a type tag", "seed: !!float 1\n"),
    with_line("an alias bomb", BOMB),
    with_line("undefined alias", "save: &here models\nload: *there\n"),
    with_line("an alias inside its own value", "fp16: &f {enabled: true, loss_scale: *f}\n"),
    with_line("a merge key without a mapping", "fp16: {<<: yes}\n"),
    with_line("excessive nesting", "fp16: " + "[" * 3000 + "\n"),
    with_line("a number as a key", "1: true\n"),
    with_line("a boolean as a key", "on: true\n"),
    with_line("empty key", ": true\n"),
    with_line("a list as a key", "[a, b]: true\n"),
]

NAMES = [
    without_lines("a misspelt key", "hidden_size", text="hiden_size: 64\n"),
    with_line("a misspelt key with dashes", "attention-dropuot: 0.1\n"),
    with_line("a key in capitals", "SEED: 1\n"),
    with_line("unknown key without a similar one", "frobnicate: 1\n"),
    with_line("a misspelt key in a section", "zero_optimization: {stage: 1, recude_bucket_size: 5e8}\n"),
    with_line("a misspelt key two sections deep", "zero_optimization:\n  offload_param:\n    devize: cpu\n"),
    with_line("a misspelt section", "zero_optimisation: {stage: 1}\n"),
    with_line("a misspelt section in a section", "optimizer: {type: Adam, parms: {lr: 1e-4}}\n"),
    with_line("a key of a section at the top", "stage: 1\n"),
    with_line("a key of several sections at the top", "enabled: true\n"),
    with_line("key one section too high", "optimizer: {type: Adam, betas: [0.9, 0.95]}\n"),
    with_line("a top-level key in a section", "fp16: {enabled: true, gradient_clipping: 1.0}\n"),
    with_line("unknown key without a similar one, in a section", "fp16: {frobnicate: 1}\n"),
    with_line("a retired spelling, misspelt", "save_intervall: 100\n"),
    with_line("a key that ends in a space", '"seed ": 1\n'),
    with_line(
        "sections that do not exist", "model:\n  norm: rmsnorm\n  pos_emb: rotary\nlogging: {log_interval: 9, foo: 1}\n"
    ),
    with_line("dotted key in a file", "zero_optimization.stage: 1\n"),
    with_line("misspelt dotted key in a file", "zero_optimization.stge: 1\n"),
    with_line("Megatron flag as a key", "--seed: 1\n"),
]

TYPES = [
    with_line("text instead of an integer", "seed: big\n"),
    with_line("fraction instead of an integer", "seed: 5.5\n"),
    with_line("a number too small", "num_workers: -1\n"),
    with_line("a number too large", "hidden_dropout: 1.5\n"),
    with_line("a port out of range", "master_port: 99999\n"),
    with_line("boolean instead of a number", "seed: yes\n"),
    with_line("number instead of a boolean", "checkpoint_activations: 1\n"),
    with_line("not a number", "lr: .nan\n"),
    with_line("infinity", "lr: .inf\n"),
    with_line("a mistyped number", "lr: 1.0e_4\n"),
    with_line("a leading zero", "seed: 0123\n"),
    with_line("a unit", "seed: 5k\n"),
    with_line("a percentage", "warmup: 1%\n"),
    with_line("thousands", "seed: 1,234\n"),
    with_line("a comma behind a value", "checkpoint_activations: true,\n"),
    with_line("a comment without a space", "seed: 1#23\n"),
    with_line("shell variable", "seed: ${SEED}\n"),
    with_line("typographic quotes", "norm: \u201crmsnorm\u201d\n"),
    with_line("steps instead of a fraction", "warmup: 2000\n"),
    with_line("`dynamic` as loss scale", "fp16: {enabled: true, loss_scale: dynamic}\n"),
    with_line("a path to a DeepSpeed JSON", "deepspeed: zero3.json\n"),
    with_line("choice of another program", "tokenizer_type: LlamaTokenizer\n"),
    with_line("an empty value", "seed:\n"),
    with_line("boolean instead of text", "save: yes\n"),
    with_line("list instead of a number", "seed: [1]\n"),
    with_line("section instead of a number", "seed: {value: 1}\n"),
    with_line("misspelt choice", "norm: layrnorm\n"),
    with_line("unknown choice without a similar one", "pos_emb: fourier\n"),
    with_line("number that is no choice", "zero_optimization: {stage: 4}\n"),
    with_line("value instead of a list", "optimizer: {type: Adam, params: {betas: 0.9}}\n"),
    with_line("wrong value in a list", "optimizer: {type: Adam, params: {betas: [0.9, high]}}\n"),
    with_line("boolean instead of a section", "fp16: true\n"),
    with_line("text instead of a section", "optimizer: Adam\n"),
    with_line("list instead of a section", "optimizer: [Adam]\n"),
    with_line("value instead of a mapping", "autotuning: {arg_mappings: 5}\n"),
    with_line("`auto` for a key that is not DeepSpeed's", "num_workers: auto\n"),
    with_line("a long wrong value", f"seed: {'x' * 300}\n"),
    with_line(
        "a wrong value at the end of a long line", "fp16: {" + "enabled: true, " + " " * 200 + "loss_scale: big}\n"
    ),
    with_line("unknown dialect", "dialect: neox-2020\n"),
    with_line("dialect before the first release", "dialect: 2019-01-01\n"),
]

DUPLICATES = [
    with_line("a key twice in a file", "seed: 1\ndata_path: books\nseed: 2\n"),
    with_line("a key with - and with _", "log-interval: 1\nlog_interval: 2\n"),
    with_line("a key twice in a section", "fp16: {enabled: true, loss_scale: 0, enabled: false}\n"),
    with_line("a section twice", "fp16: {enabled: true}\nfp16: {loss_scale: 0}\n"),
    with_line("two spellings of one parameter", "save_interval: 10\ncheckpoint_factor: 20\n"),
    two_files("a key in two files", "seed: 1\n", "# more\nseed: 1\n"),
    two_files("a nested key in two files", "fp16: {enabled: true}\n", "fp16:\n  enabled: true\n"),
    with_line("retired name that contradicts the current one", "geglu: true\nactivation: gelu\n"),
    with_line("two retired names that contradict each other", "geglu: true\nopenai_gelu: true\n"),
]

SETS = [
    with_set("no equals sign", "seed"),
    with_set("a colon instead of an equals sign", "seed:1"),
    with_set("no key", "=1"),
    with_set("empty --set", ""),
    with_set("a misspelt key by --set", "hiden_size=64"),
    with_set("a misspelt nested key by --set", "zero_optimization.stge=1"),
    with_set("a misspelt section by --set", "zero.stage=1"),
    with_set("a wrong value by --set", "hidden_size=big"),
    with_set("a wrong value in a mapping by --set", "optimizer={type: Adam, params: {betas: [high]}}"),
    with_set("a key twice by --set", "seed=1", "seed=2"),
    with_set("two spellings by --set", "save_interval=1", "checkpoint-factor=2"),
    with_set("invalid YAML by --set", "optimizer.params.betas=[0.9, "),
    with_set("a value that begins with @ by --set", "save=@models"),
    with_set("value instead of a section by --set", "fp16=true"),
    with_set("a conflict of a file with --set", "activation=gelu", text="geglu: true\n"),
]

COMBINATIONS = [
    without_lines("required parameters missing", "num_layers", "hidden_size"),
    with_line("more ranks per replica than GPUs", "pipe_parallel_size: 4\nmodel_parallel_size: 4\n"),
    with_line("similar key beside the right one", "num-layer: 4\n"),
    with_line("misspelt setting of an optimizer", "optimizer: {type: Adam, params: {beta: [0.9, 0.95]}}\n"),
    two_files(
        "many things at once", "sed: 1\nnorm: batchnorm\n", "seed: x\nmodel_parallel_size: 3\nfp16: {enable: true}\n"
    ),
]

BAD = [*FILES, *SYNTAX, *NAMES, *TYPES, *DUPLICATES, *SETS, *COMBINATIONS]
