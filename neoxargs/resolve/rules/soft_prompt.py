"""Soft prompts: what they cannot be combined with."""

from __future__ import annotations

from neoxargs.resolve.rules.rule import Findings, check, refuse

#: The settings that separate the documents of a sample.
SEPARATING = ("reset_attention_mask", "reset_position_ids", "pack_impl: best_fit")


@check
def soft_prompt_leaves_room_for_text(
    soft_prompt_tuning__enabled: bool, soft_prompt_tuning__num_tokens: int, seq_length: int
) -> Findings:
    """The prompt occupies the first positions of every sample, and the same number of tokens is cut off at the sample's
    end. If the prompt is as long as a sample, there is no text left to train on.

        soft_prompt_tuning: {enabled: true, num_tokens: 64}
        seq_length: 32
    """
    if soft_prompt_tuning__enabled and soft_prompt_tuning__num_tokens >= seq_length:
        tokens, length = (
            f"soft_prompt_tuning.num_tokens ({soft_prompt_tuning__num_tokens})",
            f"seq_length ({seq_length})",
        )
        about = ["soft_prompt_tuning.num_tokens", "seq_length"]
        yield refuse(f"{tokens} must be less than {length}", "set a smaller num_tokens or a larger seq_length", about)


@check
def soft_prompt_reaches_every_document(
    soft_prompt_tuning__enabled: bool, reset_attention_mask: bool, reset_position_ids: bool, pack_impl: str
) -> Findings:
    """The prompt precedes a sample, which can contain several documents. With attention masks per document, only the
    first document would see the prompt. With positions per document, a document's positions would start at 0, like the
    prompt's.

        soft_prompt_tuning: {enabled: true}
        reset_attention_mask: true
    """
    values = (reset_attention_mask, reset_position_ids, pack_impl == "best_fit")
    name = next((name for name, is_set in zip(SEPARATING, values, strict=True) if is_set), None)
    if soft_prompt_tuning__enabled and name is not None:
        what, about = f"soft_prompt_tuning and {name} cannot be combined", name.partition(":")[0]
        yield refuse(what, f"remove {name}", about=["soft_prompt_tuning.enabled", about])


@check
def soft_prompt_excludes_zero3(soft_prompt_tuning__enabled: bool, zero_optimization__stage: int) -> Findings:
    """The initial prompt is set on every rank after the model has been loaded. With ZeRO-3, no rank holds the whole
    prompt, or the whole token embedding in which the tokens of init_string are looked up.

        soft_prompt_tuning: {enabled: true}
        zero_optimization: {stage: 3}
    """
    if soft_prompt_tuning__enabled and zero_optimization__stage >= 3:
        what = "soft_prompt_tuning and ZeRO stage 3 cannot be combined"
        yield refuse(what, "set zero_optimization.stage to 2 or less")


@check
def soft_prompt_excludes_eval_tasks(soft_prompt_tuning__enabled: bool, eval_tasks: list[str] | None) -> Findings:
    """lm-eval truncates the texts of its tasks to seq_length tokens, which leaves no positions for a soft prompt before
    the text. The end of a long text would be cut off.

        soft_prompt_tuning: {enabled: true}
        eval_tasks: [lambada_openai]
    """
    if soft_prompt_tuning__enabled and eval_tasks:
        yield refuse("eval_tasks cannot be run with soft_prompt_tuning", "remove eval_tasks")
