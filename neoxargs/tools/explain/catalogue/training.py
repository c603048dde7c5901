"""Data, tokenizers, checkpoints and Hugging Face folders, most of them found on the ranks."""

from __future__ import annotations

from neoxargs.tools.explain.catalogue.entry import Entry, Example, row

PROBLEMS: dict[str, Entry] = {
    # data
    "no-training-data": Entry(
        "Nothing says what to train on, so the ranks would stop when they build the data.",
        Example("train_iters: 10\n", without=("text_path",)),
    ),
    "data-file-missing": row(
        "A file of tokens is not there. Every rank would start, meet the others, and stop when it opens it.",
        "data_path: data/my_text_document\n",
    ),
    "data-file-damaged": row(
        "A dataset is a pair of files, .bin and .idx, and one of them is cut off or is something else. The ranks would "
        "stop when they read behind its end, perhaps after days."
    ),
    "data-other-tokenizer": row(
        "The tokens were made with another tokenizer than the run has: every number means another word, and the model "
        "learns nothing that can be read."
    ),
    "data-part-empty": row("Too few documents are left for a part of the data after they are split."),
    "vocabulary-not-named": row(
        "This tokenizer reads its vocabulary from a file, and none is named.", "tokenizer_type: HFTokenizer\n"
    ),
    "vocabulary-missing": row(
        "The tokenizer's file is not there; every rank would stop when it builds the tokenizer.",
        "tokenizer_type: HFTokenizer\nvocab_file: tokenizer.json\n",
    ),
    "text-not-tokenised": row(
        "The ranks were started by srun or mpirun, and text_path is not tokenised yet: each of them would do it, all "
        "into the same file."
    ),
    "text-not-given": row("There is no text to make tokens of."),
    "text-missing": row("A file or folder of text does not exist."),
    "text-folder-empty": row("A folder has no text in it, or only files with other endings."),
    "text-pattern-matches-nothing": row(
        "A pattern matches no file; the shell or the folder differs from what is meant."
    ),
    "text-binary": row("The file is not text: its bytes would become tokens that mean nothing."),
    "text-empty": row("All documents are empty, so there would be no token to train on."),
    "text-not-utf8": row("The file is not UTF-8: its letters would become other letters in the tokens."),
    "text-not-decompressible": row("A compressed file is damaged or cut off."),
    "text-line-not-json": row("A .jsonl file has one JSON object in each line; this line is none."),
    "text-line-not-an-object": row("A .jsonl file has one JSON object in each line; this line holds another value."),
    "text-line-without-key": row("The object in this line has no text under the key that is read."),
    "tokenizer-unknown": row("No tokenizer has this name."),
    "tokenizer-unknown-encoding": row("tiktoken has no encoding of this name."),
    "tokenizer-file-unreadable": row("The tokenizer's file has another format than this tokenizer reads."),
    "tokenizer-not-fetched": row("The tokenizer is fetched from the Hugging Face hub, which could not be reached."),
    "tokenizer-without-end-token": row(
        "Documents are separated by a token of their own. Without one, the model could not tell where a text ends."
    ),
    "padded-vocab-too-small": row(
        "The embedding has fewer rows than the tokenizer has tokens: a token behind the last row is a device-side "
        "assert on the GPU."
    ),
    # checkpoints
    "checkpoint-missing": Entry(
        "There is no checkpoint where one is to be read. A run that starts from scratch instead looks like it goes on, "
        "and saves over what it was to continue.",
        Example("load: checkpoints\n"),
    ),
    "checkpoint-overwritten": row(
        "save is a folder in which another run has left checkpoints, and load does not continue them: the new run "
        "would replace them one by one."
    ),
    "checkpoint-all-damaged": row("Every checkpoint in the folder is cut off or lacks files; none can be continued."),
    "checkpoint-not-usable": row("The checkpoint of the iteration that was asked for is missing or damaged."),
    "checkpoint-not-loadable": row("The checkpoint does not fit the model, or is none that DeepSpeed finds."),
    "checkpoint-other-model": row(
        "The checkpoint is of a model of another shape. Loaded by force, its weights would be cut or shuffled."
    ),
    "checkpoint-other-optimizer": row(
        "The checkpoint holds the state of another optimizer, whose numbers mean something else to this one."
    ),
    "checkpoint-other-weights": row("The checkpoint lacks weights of this model, or has weights that the model lacks."),
    "checkpoint-weight-shape": row("A weight has another shape in the checkpoint than in this model."),
    "checkpoint-without-optimizer": row(
        "The checkpoint was written without the optimizer's state: a run that continues it begins with fresh means, "
        "and its loss jumps."
    ),
    "checkpoint-without-inventory": row("The checkpoint does not say which weights lie in which of its files."),
    "checkpoint-layout-not-convertible": row(
        "The checkpoint was saved on another layout of ranks, and this optimizer's state is only read on the same one."
    ),
    "checkpoint-state-not-divisible": row(
        "The optimizer's state in the checkpoint cannot be divided among another number of ranks."
    ),
    "checkpoint-too-few-vocabulary-rows": row("The checkpoint has fewer rows for tokens than are to be written."),
    "checkpoint-other-lr-schedule": row(
        "The checkpoint has another learning rate schedule than the file. Every rank would stop when it loads it, or "
        "continue with a learning rate that the file does not describe."
    ),
    "checkpoint-lr-jumps": row(
        "The decay follows train_iters. With more of them the learning rate is on another curve than the run was so "
        "far, and jumps where it continues."
    ),
    # the run
    "cpu-adam-needs-host-memory": row("The optimizer's states lie in the host's memory, which is not large enough."),
    "optimizer-not-available": row("The optimizer cannot be built on this machine: it needs code for another device."),
    "loss-not-finite": row(
        "The loss is infinite or NaN. Every later step would be lost, and a checkpoint of it is worth nothing, so the "
        "run stops without saving."
    ),
    "base-shapes-unreadable": row("The file with the base model's shapes cannot be read, so muP cannot scale."),
    "base-shapes-malformed": row("The file does not hold the shapes of a base model's weights."),
    "base-shapes-lack-a-weight": row("A weight of this model is not in the base model, so muP cannot scale it."),
    "tracker-refuses": row("The service for metrics refuses the run: a key is missing, or the network."),
    # sampling and evaluation
    "generation-type-unsupported": row("generate.py does not do this kind of sampling."),
    "prompt-file-not-given": row("Prompts are to be read from a file, and none is named."),
    "prompt-file-unreadable": row("The file of prompts cannot be read."),
    "prompt-file-empty": row("The file of prompts has none in it."),
    "evaluation-without-data": row("There is nothing to evaluate on: neither data nor tasks."),
    "evaluation-task-unknown": row("lm-eval has no task of this name."),
    "evaluation-task-not-loadable": row(
        "A task of lm-eval cannot be loaded: its data, its code or a package is missing."
    ),
    "evaluation-task-file-missing": row("A task is named by its file, and the file is not there."),
    # Hugging Face
    "output-folder-exists": row("The folder exists already; what is in it would be mixed with what is written."),
    "output-folder-unwritable": row("The folder cannot be written to."),
    "huggingface-unknown-architecture": row("The architecture is none that this package's model can be."),
    "huggingface-no-architecture": row("No architecture of transformers can express this model."),
    "huggingface-not-expressible": row(
        "A value that the other side has no counterpart for: the exported or imported model would compute something "
        "else with the same weights."
    ),
    "huggingface-keys-contradict": row("Two keys of config.json say different things about one setting."),
    "huggingface-not-a-count": row("A size in config.json is no whole number above 0."),
    "huggingface-head-width": row("Heads of another width than hidden_size / num_attention_heads do not exist here."),
    "huggingface-weights-missing": row("The folder has no weights in safetensors files."),
    "huggingface-weights-unreadable": row("A file of weights is damaged or cut off."),
    "huggingface-index-unreadable": row("The index says which file has which weight; it cannot be read."),
    "huggingface-weight-missing": row("The folder lacks a weight that the architecture has."),
    "huggingface-weight-unknown": row("The folder has a weight that the architecture lacks: it is another model."),
    "huggingface-weight-shape": row("Weights do not have the shapes that config.json describes."),
    "huggingface-weight-type": row("Weights have a number format that no model here has."),
    "huggingface-tokenizer-missing": row("The folder has no tokenizer, so the imported model could not read text."),
    "huggingface-tokenizer-too-large": row("The tokenizer has more tokens than the model has rows for them."),
}
