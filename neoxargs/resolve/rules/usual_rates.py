"""Learning rates of Adam that are usual for the kind of training and the size of the model.

Pretraining: Brown et al. 2020 (https://arxiv.org/abs/2005.14165), table 2.1, 125 million to 175 billion parameters.
Models that were published later have up to ten times these rates (Cerebras-GPT 111M 6e-3, SmolLM 135M 3e-3).
Adapters: Hu et al. 2021 and Dettmers et al. 2023, 1e-4 to 2e-3. DPO: Rafailov et al. 2023, 5e-7 to 1e-6.
Tuned prompts: Liu et al. 2021 (P-tuning v2, https://arxiv.org/abs/2110.07602), 5e-3 to 2e-2, and Lester et al. 2021
(https://arxiv.org/abs/2104.08691), 0.3.
"""

from __future__ import annotations

from collections.abc import Sequence

from neoxargs.facts.objectives import objective
from neoxargs.resolve.rules.optimizer import is_adam
from neoxargs.resolve.rules.rule import Findings, check, warn
from neoxargs.resolve.rules.usual import USUAL

#: Billions of parameters and the learning rate of GPT-3's models.
GPT_3: Sequence[tuple[float, float]] = (
    (0.125, 6e-4), (0.35, 3e-4), (0.76, 2.5e-4), (1.3, 2e-4), (2.7, 1.6e-4), (6.7, 1.2e-4), (13, 1e-4), (175, 6e-5)
)  # fmt: skip
#: How many times the rate of GPT-3 is still usual.
PRETRAINING_FACTOR = 10
#: Kind of training -> the smallest and the largest rate without a warning, and the range that the warning names.
FINETUNING = {
    "DPO": (1e-8, 5e-5, "5e-7 to 5e-6"),
    "DPO with adapters": (2e-6, 1e-3, "5e-6 to 1e-4"),
    "finetuning with adapters": (1e-5, 2e-3, "1e-4 to 1e-3"),
    "finetuning": (1e-7, 3e-4, "5e-6 to 1e-4"),
    "a tuned prompt": (1e-4, 1, "0.001 to 0.3"),
}
#: Narrower models, of tests and tutorials, learn at any rate.
NARROWEST = 512
#: A larger rate is a typing error, which `values_are_plausible` reports.
MISTYPED = USUAL["lr"].most


def largest_usual(size: float) -> float:
    """Return ten times the rate of GPT-3's next smaller model."""
    rates = [rate for billions, rate in GPT_3 if billions * 1e9 <= 1.2 * size]
    return PRETRAINING_FACTOR * (rates[-1] if rates else GPT_3[0][1])


def middle_rate(kind: str) -> float:
    """Return the geometric mean of the usual range of a kind of finetuning, rounded to one digit."""
    least, most = map(float, FINETUNING[kind][2].split(" to "))
    return float(f"{(least * most) ** 0.5:.0e}")


@check
def learning_rate_suits_the_size(  # noqa: PLR0913, PLR0917 - what decides the kind of training
    lr: float,
    num_layers: int,
    hidden_size: int,
    optimizer__type: str,
    lora__rank: int,
    soft_prompt_tuning__enabled: bool,
    train_impl: str,
    finetune: bool,
    use_mup: bool,
) -> Findings:
    """Larger models need smaller steps. With a rate far above that of published models of this size, the loss rises
    after the warm-up or becomes NaN. Without lr, GPT-NeoX trains every model at 0.001
    (https://github.com/mosaicml/llm-foundry/issues/232, https://github.com/deepspeedai/DeepSpeed/issues/7303).

        num_layers: 40
        num_attention_heads: 40
        hidden_size: 5120
        lr: 0.006
    """
    size = 12 * num_layers * hidden_size**2
    continues = finetune or lora__rank or soft_prompt_tuning__enabled or train_impl != "normal" or use_mup
    is_judged, most = is_adam(optimizer__type) and hidden_size >= NARROWEST, largest_usual(size)
    if is_judged and not continues and most < lr <= MISTYPED:
        usual = f"{most / 50:.1g} to {most / 2:.1g}"
        what = f"lr ({lr:g}) is far above the usual range for a model of this width and depth, {usual}"
        yield warn(what, "set lr to a value in this range", ["lr"])


@check
def learning_rate_suits_the_finetuning(  # noqa: PLR0913, PLR0917 - what decides the kind of training
    lr: float,
    hidden_size: int,
    optimizer__type: str,
    lora__rank: int,
    lora__alpha: float,
    lora__rank_stabilized: bool,
    soft_prompt_tuning__enabled: bool,
    train_impl: str,
    finetune: bool,
) -> Findings:
    """A pretrained model needs smaller steps than a new one. With a rate far above the usual one, it forgets what it
    has learned, or the loss becomes NaN. Adapters and tuned prompts are new weights: with the rate of full finetuning,
    they hardly learn. The output of adapters is multiplied by alpha / rank, so the upper limit holds for the product
    (https://github.com/tloen/alpaca-lora/issues/391, https://github.com/haotian-liu/LLaVA/issues/1301,
    https://github.com/huggingface/alignment-handbook/issues/68).

        hidden_size: 512
        lora: {rank: 8, alpha: 32}
        lr: 0.003
    """
    adapters, preference = bool(lora__rank), objective(train_impl).reference
    trains_some = adapters or preference or finetune or soft_prompt_tuning__enabled
    if not trains_some or not is_adam(optimizer__type) or hidden_size < NARROWEST or not 0 < lr <= MISTYPED:
        return
    kind = ("DPO" if preference else "finetuning") + " with adapters" * adapters
    least, most, usual = FINETUNING["a tuned prompt" if soft_prompt_tuning__enabled else kind]
    scale = lora__alpha / (lora__rank**0.5 if lora__rank_stabilized else lora__rank) if adapters else 1.0
    kind = "a tuned prompt" if soft_prompt_tuning__enabled else kind.replace("DPO", train_impl.upper())
    if lr * max(scale, 1) < least:
        what = f"lr ({lr:g}) is far below the usual range for {kind}, {usual}"
        yield warn(what, "increase lr", ["lr"])
    elif lr * max(scale, 1) > most:
        by_scale, given = scale > 1 and lr <= most, f"lr ({lr:g})"
        product = f"{given} x the scale of the adapters ({scale:g}) = {lr * scale:g}" if scale > 1 else given
        yield warn(
            f"{product} is far above the usual range for {kind}, {usual}",
            "decrease lr" + " or lora.alpha" * by_scale,
            ["lr", *["lora.alpha", "lora.rank"] * by_scale],
        )
