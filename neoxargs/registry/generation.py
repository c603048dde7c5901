"""Text generation and evaluation on tasks."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Fraction, Natural, NonNegative


class Generation(Group, origin="NeoX", effect="generation"):
    """What `generate.py` and `eval.py` read and write, and what a training run evaluates with generated text."""

    text_gen_type: Literal["unconditional", "input-file", "interactive", "chat", "precompute"] | None = param(None)
    """What generation starts from: nothing (`unconditional`), the lines of `sample_input_file` (`input-file`), or a
    prompt typed in (`interactive`). `chat` is a conversation: the model's chat template makes the prompt of the
    messages that are typed in and of the answers so far; on the command line, `--chat`. `precompute` writes
    log-probabilities of the training data. Default: `input-file` if `sample_input_file` is set, otherwise
    `unconditional`."""

    temperature: NonNegative = param(0.0)
    """Divides the logits before sampling: values below 1 sharpen the distribution, values above 1 flatten it. 0 always
    takes the most likely token."""

    top_p: Fraction = param(0.0)
    """Samples only from the most likely tokens, as many as it takes for their probabilities to add up to this number. 0
    turns this off."""

    top_k: Natural = param(0)
    """Samples only from the k most likely tokens, where k is this number. 0 turns this off."""

    maximum_tokens: Count = param(64, aliases="out_seq_length")
    """Maximum number of tokens to generate per sample; generation stops earlier at an end-of-document token, or at
    another eos_token_id of the generation_config.json in the tokenizer's folder."""

    prompt_end: str = param("\n")
    """Text that ends an interactive prompt, a line break by default."""

    prompt: str | None = param(None, ours=True)
    """Prompt for the model to continue; on the command line, `--prompt "..."`. If it is not set, generation starts
    without a prompt."""

    chat_template: str | None = param(None, ours=True)
    """Template of `text_gen_type: chat`: a Jinja file, the name of a template in the tokenizer's folder, or one of
    deepy's own, such as `chatml`. Default: that of the tokenizer's folder."""

    num_samples: Natural = param(1)
    """Number of samples to generate, each as a continuation of `prompt` if it is set."""

    sample_input_file: str | None = param(None)
    """File of prompts, one per line; empty lines are skipped."""

    sample_output_file: str | None = param("samples.txt", aliases="genfile")
    """File that samples are written to, one JSON object per line."""

    return_logits: bool = param(False)
    """Adds the logits of the generated tokens to every sample."""

    recompute: bool = param(False)
    """Recomputes the whole sequence for every new token instead of keeping keys and values. This is slow, but needs no
    memory for a cache. Always on with `reset_position_ids` or `reset_attention_mask`, and for texts longer than
    `seq_length`."""

    precompute_model_name: str | None = param(
        None, effect="none", no_effect_reason="deepy stores reference log-probabilities in the checkpoints"
    )
    """Name under which GPT-NeoX stores the reference log-probabilities of preference training."""

    eval_tasks: list[str] | None = param(None, effect="run")
    """Tasks that `eval.py` runs in addition to measuring perplexity: names in EleutherAI's lm-evaluation-harness (`pip
    install lm_eval`), or paths of YAML files that describe tasks in the harness's format. `train.py` runs them if
    `eval_tasks_interval` is set."""

    eval_tasks_interval: Natural = param(0, ours=True, effect="run")
    """Iterations between two runs of `eval_tasks` during training, with the layout of the run; the tasks also run
    before the first step and after the last one. 0 means that train.py runs no tasks."""

    eval_tasks_limit: Count | None = param(None, ours=True, effect="run")
    """Maximum number of examples per task in `eval_tasks`; the first ones are used. Default: all."""

    eval_tasks_path: str | None = param(None, ours=True, effect="run")
    """Folder with YAML files of your own tasks, which `eval_tasks` can then list by name."""

    eval_prompts: list[str] | None = param(None, ours=True, effect="run")
    """Texts that the model continues before the first step, at every evaluation and after the last step; `report.html`
    shows the answers by iteration. `temperature`, `top_k`, `top_p` and `maximum_tokens` apply. An empty text lets the
    model start a document."""

    eval_prompts_file: str | None = param(None, ours=True, effect="run")
    """File with more prompts like those of `eval_prompts`, one per line."""

    eval_results_prefix: str = param("", effect="run")
    """Prefix of the name of the JSON file that `eval.py` writes; `_eval_results_`, date and time follow. If it is
    empty, the file is written to `run_dir`."""

    greedy: bool = param(False, replaced_by={True: {"temperature": 0.0, "top_k": 0, "top_p": 0.0}, False: {}})
    """Retired in May 2021: use `temperature: 0`, which always takes the most likely token."""
