"""KTO and reward models, and what cannot be combined with the losses of preference training."""

from __future__ import annotations

from collections.abc import Mapping

from neoxargs.base.problems import listed
from neoxargs.facts.data import Paths, path_list
from neoxargs.resolve.rules.rule import Finding, check, check_each_split, refuse


@check
def kto_has_rewards(train_impl: str, train_data_paths: Paths, train_reward_data_paths: Paths) -> Finding | None:
    """KTO learns from answers that are rated one by one. The answers are read from train_data_paths, and their ratings
    from train_reward_data_paths.

        train_impl: kto
        pack_impl: unpacked
        data_path: answers
    """
    given = {"train_data_paths": train_data_paths, "train_reward_data_paths": train_reward_data_paths}
    absent = [name for name, paths in given.items() if not path_list(paths)]
    if train_impl != "kto" or not absent:
        return None
    what = f"train_impl (kto) needs {listed(absent, 'and')}"
    advice = "set train_data_paths to the token files of the answers, and train_reward_data_paths to their reward "
    return refuse(what, advice + "files, which `deepy data --chat --reward-key KEY` writes", ["train_impl", *absent])


@check
def kto_does_not_pack(train_impl: str, pack_impl: str) -> Finding | None:
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
    if train_impl != "kto" or pack_impl == "unpacked":
        return None
    what = f"train_impl (kto) needs one answer per sample, but pack_impl is {pack_impl}"
    return refuse(what, "set pack_impl: unpacked", ["train_impl", "pack_impl"])


@check
def kto_needs_an_even_micro_batch(train_impl: str, train_micro_batch_size_per_gpu: int) -> Finding | None:
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
    if train_impl != "kto" or size % 2 == 0:
        return None
    what = f"with train_impl: kto, train_micro_batch_size_per_gpu ({size}) must be a multiple of 2"
    nearest = f"{size - 1} or {size + 1}" if size > 1 else "2"
    return refuse(what, f"set train_micro_batch_size_per_gpu to {nearest}", ["train_micro_batch_size_per_gpu"])


@check_each_split
def SPLIT_rewards_match_paths(
    split: str, train_impl: str, SPLIT_data_paths: Paths, SPLIT_reward_data_paths: Paths
) -> Finding | None:
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
    if train_impl != "kto" or len(data) == len(own) or (split == "train" and not (data and own)):
        return None
    names = [f"{split}_reward_data_paths", f"{split}_data_paths"]
    what = f"the number of {names[0]} ({len(own)}) must equal the number of {names[1]} ({len(data)})"
    return refuse(what, "write one reward file for each dataset, in the order of the datasets", about=names)


@check
def preference_training_has_its_own_loss(
    train_impl: str, loss_average: str, char_level_ppl: bool, soft_prompt_tuning__enabled: bool
) -> Finding | None:
    """The loss of preference training is a mean over answers or pairs of answers. It has no mean over tokens and no
    perplexity, and deepy computes it only for models without a soft prompt.

        train_impl: dpo
        dataset_impl: pairwise
        pack_impl: unpacked
        pos_train_data_paths: preferred
        neg_train_data_paths: rejected
        char_level_ppl: true
    """
    refused = {
        "loss_average": loss_average == "tokens",
        "char_level_ppl": char_level_ppl,
        "soft_prompt_tuning.enabled": soft_prompt_tuning__enabled,
    }
    return None if train_impl == "normal" else _refuse_combination(train_impl, refused)


@check
def reward_models_predict_no_tokens(
    train_impl: str, lora__rank: int, eod_mask_loss: bool, eval_tasks: list[str] | None, eval_prompts: list[str] | None
) -> Finding | None:
    """A reward model has one output in place of the probabilities of tokens. It cannot answer prompts or solve tasks,
    its reward is read at an end token, and deepy trains all of its weights.

        train_impl: rm
        dataset_impl: pairwise
        pack_impl: unpacked
        pos_train_data_paths: preferred
        neg_train_data_paths: rejected
        eval_prompts: [Hello]
    """
    refused = {
        "lora.rank": lora__rank,
        "eod_mask_loss": eod_mask_loss,
        "eval_tasks": eval_tasks,
        "eval_prompts": eval_prompts,
    }
    return _refuse_combination(train_impl, refused) if train_impl == "rm" else None


def _refuse_combination(train_impl: str, is_set: Mapping[str, object]) -> Finding | None:
    """Refuse the parameters that are set. is_set: name -> whether it is."""
    names = [name for name, value in is_set.items() if value]
    if not names:
        return None
    what = f"{listed(names, 'and')} cannot be combined with train_impl ({train_impl})"
    return refuse(what, f"remove {listed(names, 'and')}", ["train_impl", *names])
