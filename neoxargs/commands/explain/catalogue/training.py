"""Problems of data, tokenizers, checkpoints, generation and Hugging Face folders; most are reported by the ranks."""

from __future__ import annotations

from neoxargs.commands.explain.catalogue.entry import Entry, Example, row

PROBLEMS: dict[str, Entry] = {
    # data
    "no-training-data": Entry(
        "No training data is configured, so every rank would stop when it builds the datasets.",
        Example("train_iters: 10\n", without=("text_path",)),
    ),
    "data-file-missing": row(
        "A token file does not exist. Every rank would start, join the process group, and stop when it opens the file.",
        "data_path: data/my_text_document\n",
    ),
    "data-file-changed": row(
        "The checksums of a token file are recorded in PREFIX.checksums.json when deepy writes it, or when a run reads "
        "it for the first time. The file now has another size or other bytes: a disk or a copy has damaged it, or "
        "another file has taken its place. If that was meant, delete the record; the next run makes a new one."
    ),
    "data-file-damaged": row(
        "A dataset is a pair of files, .bin and .idx, and one of them is truncated or has an unknown format. The "
        "ranks would stop when they read past the end of the file, possibly after days."
    ),
    "epoch-not-countable": row(
        "train_epochs sets the length of the run in passes over the data. To compute the number of steps, deepy "
        "counts the samples in the token files, but one of these files cannot be read.",
        "train_epochs: 2\ntrain_data_paths: data/absent\nvalid_data_paths: data/absent\ntest_data_paths: data/absent\n",
    ),
    "labels-do-not-match": row(
        "A label file does not have the same documents as its token file, or has a label that is neither -100 nor "
        "the token at its position. The model would be trained on the wrong tokens, which nobody would notice before "
        "reading the model's answers."
    ),
    "rewards-do-not-match": row(
        "A reward file does not have one finite number for each document of its token file, or only zeros. The model "
        "would learn from the ratings of other answers, or nothing."
    ),
    "pairs-do-not-match": row(
        "Document i of the preferred answers and document i of the rejected answers must answer the same prompt. If "
        "one file has more documents, or other prompts, the loss would compare answers to different prompts."
    ),
    "initial-checkpoint-missing": row(
        "A resumed DPO or KTO run reads answers that it has not read before. Their reference log-probabilities are "
        "those of the weights with which the run began, and the checkpoint with these weights no longer exists."
    ),
    "tokenizer-without-end": row(
        "A reward model gives its reward at an end token, which `deepy data --chat --for-rm` appends to each "
        "conversation. The tokenizer has no end token."
    ),
    "checkpoint-other-head": row(
        "A reward model has a head with one output in place of the output layer. A run with the other kind of model "
        "would have no weights for its last layer."
    ),
    "reward-model-writes-nothing": row(
        "A reward model has one output in place of the probabilities of tokens, so there is no text to generate or to "
        "evaluate, and Hugging Face's class for text generation cannot load it."
    ),
    "reference-model-lost": row(
        "A resumed DPO or KTO run reads answers that it has not read before. Their reference log-probabilities are "
        "those of the weights with which the run began. Those weights were random, so they are in no checkpoint. Or "
        "the run to be resumed had no reference model, because it did not use DPO or KTO."
    ),
    "labels-as-data": row(
        "A label file has -100 in place of tokens that do not count toward the loss. If the file were used as training "
        "data, the ranks would look up token id -100, which does not exist."
    ),
    "data-other-end": row(
        "`deepy data` records the token that it writes after each document. Two tokenizers can have the same "
        "vocabulary and end documents with different tokens, such as those of a base model and of its chat model."
    ),
    "data-other-tokenizer": row(
        "The data was tokenised with a different tokenizer. The configured tokenizer maps the same token ids to "
        "different text, so the trained model would generate meaningless text."
    ),
    "data-record-exists": row(
        "deepy data writes a record of the token file to PREFIX.json. There is already a file of this name that deepy "
        "data did not write, for example the corpus or the tokenizer."
    ),
    "data-option-invalid": row("An option of deepy data has a value that it cannot have."),
    "merge-not-possible": row(
        "Merged token files have one tokenizer, and all of them have labels and rewards or none has. The result is "
        "written beside its parts, never over them."
    ),
    "data-not-writable": row(
        "The folder of a token file cannot be created, or the disk is full. No partial file is left."
    ),
    "data-too-short": row(
        "Samples are cut from the joined documents. A dataset with fewer tokens than one sample is repeated within "
        "every sample, so the model learns these tokens by heart."
    ),
    "data-part-empty": row(
        "The split, `allow_chopped: false`, or labels without a trained token in a sample leave too few documents for "
        "training, validation or test data."
    ),
    "check-skipped": row(
        "A check of the data was skipped, because it needs numpy, which is not installed on this machine."
    ),
    "vocabulary-not-named": row(
        "This tokenizer reads its vocabulary from a file, but vocab_file is not set.", "tokenizer_type: HFTokenizer\n"
    ),
    "vocabulary-missing": row(
        "The vocabulary file does not exist; every rank would stop when it builds the tokenizer.",
        "tokenizer_type: HFTokenizer\nvocab_file: tokenizer.json\n",
    ),
    "text-not-tokenised": row(
        "The ranks were started directly by srun or mpirun, and text_path is not tokenised yet. Every rank would "
        "tokenise it and write to the same file."
    ),
    "text-not-given": row("There is no text to tokenise."),
    "text-missing": row("A text file or folder does not exist."),
    "text-not-a-file": row(
        "Text is read from files, because their sizes decide how it is cut and divided among processes. A pipe or "
        "standard input has no size."
    ),
    "text-given-twice": row("The same file was selected more than once. It is tokenised only once."),
    "text-files-left-out": row(
        "A folder contains files that are not tokenised, because they do not have the extension of a text file."
    ),
    "text-folder-empty": row("A folder contains no file with the extension of a text file, such as .txt or .jsonl."),
    "text-pattern-matches-nothing": row(
        "A pattern matches no file; it may contain a mistake or be relative to a different folder."
    ),
    "text-binary": row("The file is not text, so its tokens would be meaningless."),
    "text-empty": row("All documents are empty, so there are no tokens to train on."),
    "text-not-utf8": row("The file is not UTF-8, so its characters would be decoded wrongly."),
    "text-not-decompressible": row("A compressed file is damaged or truncated."),
    "text-line-not-json": row("Every line of a JSON-lines file must be a JSON object; this line is not JSON."),
    "text-line-not-an-object": row(
        "Every line of a JSON-lines file must be a JSON object; this line is another JSON value, such as a list."
    ),
    "text-line-without-key": row("The JSON object on this line has no text under the configured key."),
    "tokenizer-unknown": row("There is no tokenizer with this name."),
    "tokenizer-unknown-encoding": row("tiktoken has no encoding with this name."),
    "tokenizer-without-offsets": row(
        "`deepy data --chat` marks which characters of a conversation are trained on, so it has to know which "
        "characters each token covers. This tokenizer does not provide that information."
    ),
    "tokenizer-file-unreadable": row("The tokenizer's file does not have the format that this tokenizer reads."),
    "tokenizer-not-fetched": row(
        "The tokenizer has to be downloaded from the Hugging Face Hub, which could not be reached."
    ),
    "tokenizer-without-end-token": row(
        "Documents are separated by an end-of-document token. Without this token, the model cannot learn where a text "
        "ends."
    ),
    "padded-vocab-too-small": row(
        "The embedding has fewer rows than the tokenizer has tokens. Looking up a token beyond the last row fails on a "
        "GPU with a device-side assert."
    ),
    # checkpoints
    "checkpoint-missing": Entry(
        "The folder to load from contains no checkpoint. The run would silently start from scratch instead of "
        "continuing from a checkpoint.",
        Example("load: checkpoints\n"),
    ),
    "checkpoint-overwritten": row(
        "`save` is a folder with another run's checkpoints, and `load` is not set to this folder. The new run would "
        "overwrite them one by one."
    ),
    "save-among-gpt-neox": row(
        "`save` is a folder with GPT-NeoX's checkpoints. A run that saved there would replace those of the same "
        "iterations, and neither program would continue from the right one."
    ),
    "newer-checkpoints-lost": row(
        "With `iteration`, a run continues from an older checkpoint in the folder that it saves to. It replaces the "
        "newer checkpoints one by one, or removes them because of `keep_last_n_checkpoints`."
    ),
    "checkpoint-of-gpt-neox": row(
        "The checkpoint in `load` was written by GPT-NeoX. The message lists what the run restores from the "
        "checkpoint and what it does not restore."
    ),
    "base-shapes-of-gpt-neox": row(
        "GPT-NeoX writes one file of base shapes per rank, with the shapes of that rank's shards. deepy's file has the "
        "full shapes, for every layout."
    ),
    "checkpoint-incomplete": row(
        "A GPT-NeoX checkpoint is missing files, or its files do not contain all of the weights."
    ),
    "checkpoint-latest-wrong": row("The file `latest` points to a checkpoint that is not in the folder."),
    "checkpoint-file-damaged": row(
        "A GPT-NeoX checkpoint file is empty, truncated or modified, or was not written by torch.save."
    ),
    "checkpoint-file-renamed": row(
        "torch.save records in a file the name under which it was saved. This file of a GPT-NeoX checkpoint was saved "
        "as the file of a different layer or rank, so its weights would be loaded into the wrong place."
    ),
    "checkpoint-files-mixed": row(
        "Some files of a GPT-NeoX checkpoint are of a different iteration than the others. The model would be a "
        "mixture of two states of the run."
    ),
    "weights-not-compared": row(
        "`deepy diff` compares the weights of two checkpoints if torch is installed and both list their weights. Here, "
        "only the configurations were compared."
    ),
    "checkpoint-file-refused": row(
        "A checkpoint file refers to a class or function that does not belong in a checkpoint. Reading the file with "
        "pickle or with torch.load could run malicious code, so deepy stops without reading it."
    ),
    "checkpoint-order-unknown": row(
        "Different GPT-NeoX versions store the query, key and value rows in different orders, and nothing in the "
        "checkpoint shows which order it uses."
    ),
    "checkpoint-all-damaged": row(
        "In every checkpoint in the folder, a file is missing, truncated or modified (its checksum differs from the "
        "recorded one), so the run cannot resume from any of them."
    ),
    "checkpoint-not-saved": row(
        "A rank could not write its part of a checkpoint, for example because the disk is full. Earlier checkpoints "
        "are not affected: a checkpoint is visible only once all of its files are complete."
    ),
    "checkpoint-not-usable": row("The checkpoint of the requested iteration is missing or damaged."),
    "checkpoint-loss-differs": row(
        "With `checkpoint_validation_with_forward_pass`, a checkpoint records the loss of a fixed sample. The loaded "
        "model has a different loss on this sample: the weights were loaded into the wrong places, or the code now "
        "computes something different."
    ),
    "checkpoint-not-loadable": row("The checkpoint does not fit the model, or DeepSpeed cannot find the checkpoint."),
    "checkpoint-skipped": row(
        "The newest checkpoint cannot be loaded, so the run continues from an older checkpoint and repeats the steps "
        "in between."
    ),
    "checkpoint-unread": row(
        "With `finetune`, `load` is the checkpoint that a run starts from, and `save` is the folder of the run's own "
        "checkpoints. Programs that only read a checkpoint, such as generate.py, read `load`: they get the model "
        "before finetuning."
    ),
    "checkpoint-other-model": row(
        "The checkpoint belongs to a different model: its weights do not fit this model, or this model would use them "
        "in a way that they were not trained for."
    ),
    "checkpoint-model-changed": row(
        "Values that are often changed on purpose, for a longer context, finetuning or inference, are different from "
        "those in the checkpoint. The weights fit, but were trained with the old values."
    ),
    "checkpoint-training-changed": row(
        "The run continues with different data, a different batch size, seed, optimizer, precision or loss, or a "
        "different regularization. Its result is not that of an uninterrupted run."
    ),
    "checkpoint-other-optimizer": row(
        "The checkpoint contains a different optimizer's state, which this optimizer cannot use."
    ),
    "node-local-storage-shared": row(
        "With use_node_local_storage, every host writes its own files. In a shared folder, several "
        "hosts would write the same files."
    ),
    "checkpoint-other-vocabulary": row(
        "The checkpoint was trained with a different tokenizer or vocabulary size. A row of its embedding may then "
        "belong to a different token than in this run. The weights can be loaded: rows that the checkpoint lacks "
        "start at 0, and surplus rows are dropped."
    ),
    "checkpoint-other-weights": row(
        "The checkpoint is missing weights of this model, or contains weights that the model does not have."
    ),
    "checkpoint-weight-shape": row("A weight in the checkpoint does not have the shape that it has in this model."),
    "checkpoint-without-optimizer": row(
        "The checkpoint was saved without the optimizer state. A run that continues from it starts with empty moments, "
        "and its loss jumps."
    ),
    "checkpoint-without-inventory": row(
        "The checkpoint has no weight index (layout-*.json), which maps each weight to its files."
    ),
    "checkpoint-layout-not-convertible": row(
        "The checkpoint was saved with a different layout. This optimizer's state can be loaded only with the layout "
        "that it was saved with."
    ),
    "checkpoint-state-not-divisible": row(
        "The optimizer state in the checkpoint cannot be partitioned for this number of ranks."
    ),
    "checkpoint-too-few-vocabulary-rows": row(
        "The embedding in the checkpoint has fewer rows than the exported model needs."
    ),
    "checkpoint-other-lr-schedule": row(
        "The checkpoint has a different learning rate schedule than the configuration. Every rank would stop when it "
        "loads the checkpoint, or continue with a learning rate that the configuration does not describe."
    ),
    "checkpoint-lr-jumps": row(
        "The learning rate decays over train_iters iterations unless lr_decay_iters is set. If a resumed run has a "
        "different train_iters, its learning rate follows a different curve and jumps at the first iteration."
    ),
    "checkpoint-other-epochs": row(
        "The number of steps in train_epochs is computed with the current batch size for the whole run. If the steps "
        "before the checkpoint had another batch size, the run would read more or fewer samples than train_epochs sets."
    ),
    # the run
    "cpu-adam-needs-host-memory": row(
        "The optimizer states are offloaded to host memory, which is too small for them."
    ),
    "optimizer-not-available": row(
        "The optimizer cannot be built on this machine, because its kernels exist only for a different type of device."
    ),
    "layers-cannot-compile": row(
        "torch.compile generates C++ for CPUs. For GPUs, it generates Triton kernels, each with a small C program. "
        "Without a compiler, the first step would fail on every rank."
    ),
    "loss-not-finite": row(
        "The loss is infinite or NaN. Later steps and checkpoints would be useless, so the run stops without saving."
    ),
    "gradient-not-finite": row(
        "A gradient is infinite or NaN, and after the step so are weights, although the loss was finite. A checkpoint "
        "of this step would be of no use, and older ones would be removed for it."
    ),
    "weights-not-finite": row(
        "A weight or an optimizer state is infinite or NaN. The checkpoint would be of no use, and older ones would be "
        "removed for it."
    ),
    "checkpoint-not-finite": row(
        "The checkpoint has weights or optimizer states that are infinite or NaN, so every later loss would be too."
    ),
    "fp16-keeps-overflowing": row(
        "The gradients overflow fp16 even when the loss is not scaled up, so every later step would be skipped."
    ),
    "steps-keep-diverging": row(
        "Skipping a step does not change the weights. If many consecutive steps diverge, the weights themselves have "
        "diverged, and later steps will diverge too."
    ),
    "run-folder-not-written": row(
        "Rank 0 cannot write the run's metrics or reports: the disk is full, or the folder has disappeared or is "
        "read-only."
    ),
    "run-folder-vanished": row(
        "A folder that the run writes to was removed, renamed or unmounted. The run creates the folder again "
        "and continues, because it would otherwise lose everything since its last checkpoint."
    ),
    "base-shapes-unreadable": row(
        "The file with the base model's shapes cannot be read. muP needs these shapes to scale initial weights "
        "and learning rates."
    ),
    "base-shapes-malformed": row("The file does not contain a base model's weight shapes."),
    "base-shapes-weight-missing": row("A weight of this model is missing from the base model, so muP cannot scale it."),
    "tracker-refuses": row(
        "The experiment tracker cannot be reached, or it rejects the run, for example because the API key is missing "
        "or wrong."
    ),
    # sampling and evaluation
    "generation-type-unsupported": row("generate.py does not support this text_gen_type."),
    "prompt-file-not-given": row("The prompts are to be read from a file, but sample_input_file is not set."),
    "prompt-file-unreadable": row("The prompt file cannot be read."),
    "prompt-file-empty": row("The prompt file contains no prompts."),
    "prompt-lines-empty": row(
        "The prompt file has empty lines, which are skipped. The n-th sample therefore does not belong to line n."
    ),
    "evaluation-without-data": row("There is nothing to evaluate on: neither data nor tasks are configured."),
    "evaluation-task-unknown": row("lm-eval has no task with this name."),
    "evaluation-task-not-loadable": row(
        "An lm-eval task cannot be loaded, because its data, its code or a package is missing."
    ),
    "evaluation-task-file-missing": row("A task is given as the path to a file that does not exist."),
    "evaluation-task-folder-missing": row("The folder with your own tasks does not exist."),
    # Hugging Face
    "output-folder-exists": row("The output folder already exists, and its files would be mixed with the new ones."),
    "export-vocabulary-too-small": row(
        "The exported model would have no embedding for some of the tokens that its tokenizer returns."
    ),
    "export-option-not-applicable": row(
        "An option does not apply to the kind of output that the other options of `deepy export` select."
    ),
    "output-folder-unwritable": row("The output folder cannot be written to."),
    "nothing-to-import": row(
        "`deepy import` reads Hugging Face models and GPT-NeoX checkpoints; this folder has neither."
    ),
    "huggingface-unknown-architecture": row(
        "deepy's model has no equivalent of this Hugging Face Transformers architecture."
    ),
    "huggingface-no-architecture": row("No Hugging Face Transformers architecture is equivalent to this model."),
    "huggingface-not-expressible": row(
        "A value has no equivalent in the target format: with the same weights, the exported or imported model would "
        "compute different outputs."
    ),
    "huggingface-keys-contradict": row("Two keys of config.json set the same parameter to different values."),
    "huggingface-not-a-count": row("A size in config.json is not a positive integer."),
    "huggingface-head-width": row(
        "The architecture requires attention heads of width hidden_size / num_attention_heads."
    ),
    "huggingface-weights-missing": row("The folder contains no safetensors files with weights."),
    "huggingface-tokens-lost": row(
        "A folder without a tokenizer.json can list tokens that its vocab.json or tokenizer.model does not have, such "
        "as those of its chat template. Without them, a model would read these tokens as ordinary text."
    ),
    "huggingface-folder-damaged": row(
        "`deepy export` records the checksum of each file that it writes. A file of this folder has changed since."
    ),
    "huggingface-weights-unreadable": row("A weight file is damaged or truncated."),
    "huggingface-index-unreadable": row("The index that maps weights to files cannot be read."),
    "huggingface-weight-missing": row("A weight that the architecture requires is missing from the folder."),
    "huggingface-weight-unknown": row(
        "The folder has a weight that is not part of the architecture, so it contains a different model."
    ),
    "huggingface-weight-shape": row("A weight does not have the shape that config.json implies."),
    "huggingface-weight-type": row("A weight has a data type that deepy's model does not support."),
    "huggingface-tokenizer-missing": row(
        "The folder contains no tokenizer, and the imported model cannot be used without one."
    ),
    "huggingface-tokenizer-too-large": row("The tokenizer has more tokens than the model's embedding has rows."),
}
