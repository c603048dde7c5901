"""KTO and reward models, and what cannot be combined with the losses of preference training."""

from __future__ import annotations

from neoxargs.base.problems import listed
from neoxargs.facts.data import Paths, path_list
from neoxargs.resolve.rules.rule import Findings, check, check_each_split, refuse, true_names
from neoxargs.resolve.rules.shared_findings import nearest


@check
def kto_has_rewards(train_impl: str, train_data_paths: Paths, train_reward_data_paths: Paths) -> Findings:
    """KTO learns from answers that are rated one by one. The answers are read from train_data_paths, and their ratings
    from train_reward_data_paths.

        train_impl: kto
        pack_impl: unpacked
        data_path: answers
    """
    given = {"train_data_paths": train_data_paths, "train_reward_data_paths": train_reward_data_paths}
    absent = [name for name, paths in given.items() if not path_list(paths)]
    if train_impl == "kto" and absent:
        what = f"train_impl (kto) needs {listed(absent, 'and')}"
        advice = "set train_data_paths to the token files of the answers, and train_reward_data_paths to their reward "
        yield refuse(what, advice + "files, which `deepy data --chat --reward-key KEY` writes", ["train_impl", *absent])


@check
def kto_does_not_pack(train_impl: str, pack_impl: str) -> Findings:
    """KTO compares the log-probability of one whole answer with its reward. A sample with parts of several documents
    has several rewards.

        train_impl: kto
        train_data_paths: answers
        valid_data_paths: answers
        test_data_paths: answers
        train_reward_data_paths: rewards
        valid_reward_data_paths: rewards
        test_reward_data_paths: rewards
    """
    if train_impl == "kto" and pack_impl != "unpacked":
        what = f"train_impl (kto) needs one answer per sample, but pack_impl is {pack_impl}"
        yield refuse(what, "set pack_impl: unpacked")


@check
def kto_needs_an_even_micro_batch(train_impl: str, train_micro_batch_size_per_gpu: int) -> Findings:
    """KTO compares each half of a micro batch with the other half, from which it estimates how far the model is from
    the reference model.

        train_impl: kto
        pack_impl: unpacked
        train_data_paths: answers
        valid_data_paths: answers
        test_data_paths: answers
        train_reward_data_paths: rewards
        valid_reward_data_paths: rewards
        test_reward_data_paths: rewards
        train_micro_batch_size_per_gpu: 3
    """
    size = train_micro_batch_size_per_gpu
    if train_impl == "kto" and size % 2:
        what = f"with train_impl: kto, train_micro_batch_size_per_gpu ({size}) must be a multiple of 2"
        advice = f"set train_micro_batch_size_per_gpu to {nearest(size, 2)}"
        yield refuse(what, advice, ["train_micro_batch_size_per_gpu"])


@check_each_split
def SPLIT_rewards_match_paths(
    split: str, train_impl: str, SPLIT_data_paths: Paths, SPLIT_reward_data_paths: Paths
) -> Findings:
    """SPLIT_reward_data_paths holds the rewards of SPLIT_data_paths, one file for each dataset, in the same order:
    evaluations compute KTO's loss too. With a different number of files, a dataset would get the rewards of another
    one, or none.

        train_impl: kto
        pack_impl: unpacked
        train_data_paths: {train}
        valid_data_paths: {valid}
        test_data_paths: {test}
        train_reward_data_paths: rewards
        valid_reward_data_paths: rewards
        test_reward_data_paths: rewards
    """
    data, own = path_list(SPLIT_data_paths), path_list(SPLIT_reward_data_paths)
    # Without any for training, `kto_has_rewards` says so.
    if train_impl == "kto" and len(data) != len(own) and (split != "train" or (data and own)):
        names = [f"{split}_reward_data_paths", f"{split}_data_paths"]
        what = f"the number of {names[0]} ({len(own)}) must equal the number of {names[1]} ({len(data)})"
        yield refuse(what, "write one reward file for each dataset, in the order of the datasets", about=names)


@check
def preference_training_has_its_own_loss(
    train_impl: str, loss_average: str, char_level_ppl: bool, soft_prompt_tuning__enabled: bool
) -> Findings:
    """The loss of preference training is a mean over answers or pairs of answers. It has no mean over tokens and no
    perplexity, and deepy computes it only for models without a soft prompt.

        train_impl: dpo
        dataset_impl: pairwise
        pack_impl: unpacked
        pos_train_data_paths: preferred
        neg_train_data_paths: rejected
        char_level_ppl: true
    """
    if train_impl != "normal":
        yield from _refuse_combination(
            train_impl, loss_average=loss_average == "tokens", char_level_ppl=char_level_ppl,
            soft_prompt_tuning__enabled=soft_prompt_tuning__enabled,
        )  # fmt: skip


@check
def reward_models_predict_no_tokens(
    train_impl: str, lora__rank: int, eod_mask_loss: bool, eval_tasks: list[str] | None, eval_prompts: list[str] | None
) -> Findings:
    """A reward model has one output in place of the probabilities of tokens. It cannot answer prompts or solve tasks,
    its reward is read at an end token, and deepy trains all of its weights.

        train_impl: rm
        dataset_impl: pairwise
        pack_impl: unpacked
        pos_train_data_paths: preferred
        neg_train_data_paths: rejected
        eval_prompts: [Hello]
    """
    if train_impl == "rm":
        yield from _refuse_combination(
            train_impl, lora__rank=lora__rank, eod_mask_loss=eod_mask_loss, eval_tasks=eval_tasks,
            eval_prompts=eval_prompts,
        )  # fmt: skip


def _refuse_combination(train_impl: str, **values: object) -> Findings:
    """Refuse the parameters that are set."""
    if names := true_names(**values):
        what = f"{listed(names, 'and')} cannot be combined with train_impl ({train_impl})"
        yield refuse(what, f"remove {listed(names, 'and')}", ["train_impl", *names])
