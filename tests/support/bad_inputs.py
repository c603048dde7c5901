"""What people get wrong, one row each: a title, the files (the first is given on the command line), the arguments.

A text is appended to GOOD unless it is the whole of a file; bytes are a whole file as it is on disk.
"""

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
    title: str
    files: dict[str, str | bytes]
    paths: tuple[str, ...] = ("my",)
    sets: tuple[str, ...] = ()
    directory: str | None = None
    gpus: int = 8


def line(title: str, text: str) -> Bad:
    """A good configuration with one more line."""
    return Bad(title, {"my.yml": GOOD + text})


def whole(title: str, text: str | bytes, name: str = "my.yml") -> Bad:
    """A file with nothing but this in it."""
    return Bad(title, {name: text})


def two(title: str, first: str, second: str) -> Bad:
    """A good configuration with more lines, and a second file."""
    return Bad(title, {"my.yml": GOOD + first, "more.yml": second}, ("my", "more"))


def by_set(title: str, *sets: str, text: str = "") -> Bad:
    """A good configuration and `--set`s."""
    return Bad(title, {"my.yml": GOOD + text}, sets=sets)


def found(title: str, *paths: str, directory: str | None = None) -> Bad:
    """Names of files in a folder with a few of them."""
    present: dict[str, str | bytes] = {"my.yml": GOOD, "configs/125M.yml": GOOD, "configs/350M.yml": GOOD}
    return Bad(
        title,
        {**present, "configs/.125N.yml": GOOD, "configs/tune.json": "{}", "empty/.keep": ""},
        paths,
        directory=directory,
    )


def without(title: str, *names: str, text: str = "") -> Bad:
    """A good configuration without some of its lines."""
    kept = [row for row in GOOD.splitlines(keepends=True) if row.split(":")[0] not in names]
    return Bad(title, {"my.yml": "".join(kept) + text})


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(['*' + old] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)

FILES = [
    found("a file that is not there", "125N", directory="configs"),
    found("a file that is not there, spelt quite otherwise", "llama.yml", directory="configs"),
    found("a file in a folder that is not there", "configs/models/125M.yml"),
    found("a file that is not there, in a folder without any", "125M", directory="empty"),
    found("two files that are not there", "mine.yml", "theirs.yml"),
    found("a folder for -d that is not there", "125M", directory="config"),
    found("a directory instead of a file", "configs"),
    found("the same file twice", "my.yml", "my"),
    found("a name with a NUL in it", "m\0y"),
    whole("20 MB", b"# " + b"x" * 20_000_000),
    whole("binary", b"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00"),
    whole("NUL bytes in text", b"num_layers: 4\x00\n"),
    whole("UTF-16", "num_layers: 4\n".encode("utf-16")),
    whole("Latin-1", "num_layers: 4\nsave: Modèle  # the model\n".encode("latin-1")),
]

SYNTAX = [
    whole("nothing", ""),
    whole("only comments", "# num_layers: 4\n"),
    whole("only null", "null\n"),
    whole("a list", "- num_layers: 4\n- hidden_size: 64\n"),
    whole("a sentence", "num_layers of 4\n"),
    whole("no space after the colon", "num_layers:4\nhidden_size:64\n"),
    whole("an ini file", "num_layers = 4\nhidden_size = 64\n"),
    whole("a Python file", 'import os\n\nCONFIG = {"num_layers": 4}\n'),
    line("no space after the colon, and more lines", "log_interval:4\nseed: 1\n"),
    line("no space after the colon in a section", "fp16:\n  enabled:true\n  loss_scale: 0\n"),
    line("no space after the colon in braces", "fp16: {enabled:true}\n"),
    line("an equals sign between good lines", "log_interval = 4\nseed: 1\n"),
    line("a flag among the lines", "--log-interval 4\nseed: 1\n"),
    line("a space that is none", "seed:\u00a01\n"),
    line("a colon that is none", "seed\uff1a 1\n"),
    line("two colons beside each other", "seed:: 1\n"),
    line("a comment of another language", "// the seed\nseed: 1\n"),
    line("what git leaves of a conflict", "<<<<<<< HEAD\nseed: 1\n=======\nseed: 2\n>>>>>>> other\n"),
    line("a list item among the keys", "- seed: 1\n"),
    line("JSON behind lines of YAML", '{"seed": 1}\n'),
    line("JSON without its outer braces", '"fp16": {\n  "enabled": true\n},\n"seed": 1\n'),
    whole("TOML", "[model]\nnum_layers = 4\n"),
    whole("a block of Markdown", "```yaml\nnum_layers: 4\n```\n"),
    whole("a first line further right", "  num_layers: 4\nhidden_size: 64\n"),
    line("a section whose keys are not indented", "fp16:\nenabled: true\n"),
    line("a tab as indentation", "fp16:\n\tenabled: true\n"),
    line("a key without a colon", "checkpoint_activations\nseed: 1\n"),
    line("two colons", "data_path: s3: bucket\n"),
    line("a key indented by accident", " seed: 1\n"),
    line("a key indented differently", "fp16:\n    enabled: true\n  loss_scale: 0\n"),
    line("a flow mapping that stays open", "fp16: {enabled: true\nseed: 1\n"),
    line("a flow mapping that stays open to the end", "fp16: {enabled: true"),
    line("a list that stays open", "zero_optimization: {stage: [1, 2}\n"),
    whole("a list that is closed too early", '{\n  "train_data_paths": [\n    "a",]\n    "b",\n  ],\n}\n'),
    line("a bracket too many", "seed: ]\n"),
    line("a comma too many", "train_data_paths: [a,, b]\n"),
    line("a quote that stays open", 'save: "models\nseed: 1\n'),
    line("a quote in a quote", "wandb_group: 'it's mine'\n"),
    line("words after a quote", 'save: "models" here\n'),
    line("a Windows path in double quotes", 'data_path: "C:\\data"\n'),
    line("an at sign", "save: @models\n"),
    line("a percent sign", "save: %models\n"),
    line("a star", "include: *\n"),
    line("a list on the line of its key", "train_data_paths: - a\n"),
    whole("a list and then keys", "- num_layers: 4\nhidden_size: 64\n"),
    whole("Python before the configuration", "import yaml\n\nnum_layers: 4\n"),
    line("a control character", "save: mod\x07els\n"),
    line("half of a surrogate pair", 'save: "\\ud83d"\n'),
    whole("JSON with a missing comma", '{"num_layers": 4\n "hidden_size": 64}', "my.json"),
    whole("JSON with a missing colon", '{"num_layers" 4,\n "hidden_size": 64}', "my.json"),
    whole("JSON with an equals sign", '{"num_layers"= 4}', "my.json"),
    whole("JSON that stays open", '{"num_layers": 4,\n "hidden_size": 64\n', "my.json"),
    whole("JSON that is closed twice", '{"num_layers": 4}}\n', "my.json"),
    whole("JSON and then more", '{"num_layers": 4}\nhidden_size: 64\n', "my.json"),
    whole("two documents", "num_layers: 4\n---\nhidden_size: 64\n"),
    whole("a YAML directive", "%YAML 3.0\n---\nnum_layers: 4\n"),
    line("a Python object", "save: !!python/object/apply:os.system [echo]\n"),
    line("a type tag", "seed: !!float 1\n"),
    line("an alias bomb", BOMB),
    line("an alias of nothing", "save: &here models\nload: *there\n"),
    line("an alias inside its own value", "fp16: &f {enabled: true, loss_scale: *f}\n"),
    line("a merge key without a mapping", "fp16: {<<: yes}\n"),
    line("nesting without end", "fp16: " + "[" * 3000 + "\n"),
    line("a number as a key", "1: true\n"),
    line("a boolean as a key", "on: true\n"),
    line("nothing as a key", ": true\n"),
    line("a list as a key", "[a, b]: true\n"),
]

NAMES = [
    without("a misspelt key", "hidden_size", text="hiden_size: 64\n"),
    line("a misspelt key with dashes", "attention-dropuot: 0.1\n"),
    line("a key in capitals", "SEED: 1\n"),
    line("a key nothing is like", "frobnicate: 1\n"),
    line("a misspelt key in a section", "zero_optimization: {stage: 1, recude_bucket_size: 5e8}\n"),
    line("a misspelt key two sections deep", "zero_optimization:\n  offload_param:\n    devize: cpu\n"),
    line("a misspelt section", "zero_optimisation: {stage: 1}\n"),
    line("a misspelt section in a section", "optimizer: {type: Adam, parms: {lr: 1e-4}}\n"),
    line("a key of a section at the top", "stage: 1\n"),
    line("a key of several sections at the top", "enabled: true\n"),
    line("a key one section too high", "optimizer: {type: Adam, betas: [0.9, 0.95]}\n"),
    line("a top-level key in a section", "fp16: {enabled: true, gradient_clipping: 1.0}\n"),
    line("a key nothing is like, in a section", "fp16: {frobnicate: 1}\n"),
    line("a retired spelling, misspelt", "save_intervall: 100\n"),
    line("a key that ends in a space", '"seed ": 1\n'),
    line("sections of one's own", "model:\n  norm: rmsnorm\n  pos_emb: rotary\nlogging: {log_interval: 9, foo: 1}\n"),
    line("a dot in a file", "zero_optimization.stage: 1\n"),
    line("a dot and a misspelt key", "zero_optimization.stge: 1\n"),
    line("a key of a Megatron flag", "--seed: 1\n"),
]

TYPES = [
    line("text where a whole number belongs", "seed: big\n"),
    line("a fraction where a whole number belongs", "seed: 5.5\n"),
    line("a number too small", "num_workers: -1\n"),
    line("a number too large", "hidden_dropout: 1.5\n"),
    line("a port out of range", "master_port: 99999\n"),
    line("a boolean where a number belongs", "seed: yes\n"),
    line("a number where a boolean belongs", "checkpoint_activations: 1\n"),
    line("not a number", "lr: .nan\n"),
    line("infinity", "lr: .inf\n"),
    line("a mistyped number", "lr: 1.0e_4\n"),
    line("a leading zero", "seed: 0123\n"),
    line("a unit", "seed: 5k\n"),
    line("a percentage", "warmup: 1%\n"),
    line("thousands", "seed: 1,234\n"),
    line("a comma behind a value", "checkpoint_activations: true,\n"),
    line("a comment without a space", "seed: 1#23\n"),
    line("a variable of the shell", "seed: ${SEED}\n"),
    line("quotes of a word processor", "norm: \u201crmsnorm\u201d\n"),
    line("steps where a share belongs", "warmup: 2000\n"),
    line("a word for dynamic loss scaling", "fp16: {enabled: true, loss_scale: dynamic}\n"),
    line("a path to a DeepSpeed JSON", "deepspeed: zero3.json\n"),
    line("another program's choice", "tokenizer_type: LlamaTokenizer\n"),
    line("an empty value", "seed:\n"),
    line("a boolean where text belongs", "save: yes\n"),
    line("a list where a number belongs", "seed: [1]\n"),
    line("a section where a number belongs", "seed: {value: 1}\n"),
    line("no such choice", "norm: layrnorm\n"),
    line("no such choice, nothing like it", "pos_emb: fourier\n"),
    line("a choice of numbers", "zero_optimization: {stage: 4}\n"),
    line("a value where a list belongs", "optimizer: {type: Adam, params: {betas: 0.9}}\n"),
    line("one wrong value in a list", "optimizer: {type: Adam, params: {betas: [0.9, high]}}\n"),
    line("a boolean where a section belongs", "fp16: true\n"),
    line("a word where a section belongs", "optimizer: Adam\n"),
    line("a list where a section belongs", "optimizer: [Adam]\n"),
    line("a value where a mapping belongs", "autotuning: {arg_mappings: 5}\n"),
    line("auto outside DeepSpeed's part", "num_workers: auto\n"),
    line("a long wrong value", f"seed: {'x' * 300}\n"),
    line("a wrong value at the end of a long line", "fp16: {" + "enabled: true, " + " " * 200 + "loss_scale: big}\n"),
    line("a dialect that is none", "dialect: neox-2020\n"),
    line("a dialect before the first", "dialect: 2019-01-01\n"),
]

TWICE = [
    line("a key twice in a file", "seed: 1\ndata_path: books\nseed: 2\n"),
    line("a key with - and with _", "log-interval: 1\nlog_interval: 2\n"),
    line("a key twice in a section", "fp16: {enabled: true, loss_scale: 0, enabled: false}\n"),
    line("a section twice", "fp16: {enabled: true}\nfp16: {loss_scale: 0}\n"),
    line("two spellings of one parameter", "save_interval: 10\ncheckpoint_factor: 20\n"),
    two("a key in two files", "seed: 1\n", "# more\nseed: 1\n"),
    two("a nested key in two files", "fp16: {enabled: true}\n", "fp16:\n  enabled: true\n"),
    line("a retired name against today's", "geglu: true\nactivation: gelu\n"),
    line("two retired names against each other", "geglu: true\nopenai_gelu: true\n"),
]

SETS = [
    by_set("no equals sign", "seed"),
    by_set("a colon instead of an equals sign", "seed:1"),
    by_set("no key", "=1"),
    by_set("nothing at all", ""),
    by_set("a misspelt key by --set", "hiden_size=64"),
    by_set("a misspelt nested key by --set", "zero_optimization.stge=1"),
    by_set("a misspelt section by --set", "zero.stage=1"),
    by_set("a wrong value by --set", "hidden_size=big"),
    by_set("a wrong value in a mapping by --set", "optimizer={type: Adam, params: {betas: [high]}}"),
    by_set("a key twice by --set", "seed=1", "seed=2"),
    by_set("two spellings by --set", "save_interval=1", "checkpoint-factor=2"),
    by_set("not YAML by --set", "optimizer.params.betas=[0.9, "),
    by_set("a value that begins with @ by --set", "save=@models"),
    by_set("a value where a section belongs by --set", "fp16=true"),
    by_set("a conflict of a file with --set", "activation=gelu", text="geglu: true\n"),
]

TOGETHER = [
    without("required parameters missing", "num_layers", "hidden_size"),
    without("the batch size is missing", "train_micro_batch_size_per_gpu"),
    line("a batch that is no multiple", "train_batch_size: 100\n"),
    line("a batch equation that does not hold", "train_batch_size: 64\ngradient_accumulation_steps: 8\n"),
    line("two names for the micro batch, two values", "batch_size: 3\n"),
    without("heads that do not divide the hidden size", "num_attention_heads", text="num_attention_heads: 7\n"),
    line("heads that do not divide between ranks", "model_parallel_size: 8\n"),
    line("more pipeline stages than layers", "pipe_parallel_size: 8\n"),
    line("more ranks in a copy than GPUs", "pipe_parallel_size: 4\nmodel_parallel_size: 4\n"),
    line("GPUs left over", "model_parallel_size: 2\npipe_parallel_size: 3\n"),
    line("ZeRO 2 with a pipeline", "pipe_parallel_size: 2\nzero_optimization: {stage: 2}\n"),
    line("two sources of data", "data_path: a\ntext_path: b\n"),
    line("a split of nothing", "split: 0,1,1\n"),
    line("a similar key beside the right one", "num-layer: 4\n"),
    line("a setting of another optimizer", "optimizer: {type: Adam, params: {beta: [0.9, 0.95]}}\n"),
    line("two learning rates", "lr: 0.001\noptimizer: {type: Adam, params: {lr: 0.1}}\n"),
    line("weights for other paths", "train_data_paths: [a, b]\ntrain_data_weights: [1]\n"),
    two("many things at once", "sed: 1\nnorm: batchnorm\n", "seed: x\nmodel_parallel_size: 3\nfp16: {enable: true}\n"),
]

BAD = [*FILES, *SYNTAX, *NAMES, *TYPES, *TWICE, *SETS, *TOGETHER]
