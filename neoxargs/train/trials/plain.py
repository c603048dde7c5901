"""The training loop in plain torch, on one rank: what DeepSpeed's engine must agree with.

The layers and the data are the run's own. The cross entropy, losses that layers add, sums of gradients, clipping and
the optimizer's updates are written out, and the gradients are autograd's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain, islice

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from neoxargs.config.config import Config
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.lr_schedule import rates
from neoxargs.facts.objectives import objective
from neoxargs.facts.sequence_lengths import SequenceLengths
from neoxargs.facts.weight_decay import WeightDecay
from neoxargs.targets.wire_format import RankArguments
from neoxargs.train.losses.added_losses import AddedLosses, Term
from neoxargs.train.losses.cross_entropy import IGNORED, Readout
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.model.experts.layer import Experts
from neoxargs.train.model.experts.router import BALANCE, Z
from neoxargs.train.model.gpt import GPT
from neoxargs.train.process import setup
from neoxargs.train.run import model_and_data
from neoxargs.train.track.tracker import Step
from neoxargs.train.trials import properties
from neoxargs.train.trials.optimizers import optimizer
from neoxargs.train.trials.properties import Properties


class Objective:
    """What a model minimises on a micro batch, and what it reports of it."""

    def __init__(self, config: Config, model: GPT) -> None:
        self.config, self.model = config, model
        self.vocabulary = model.loss.vocabulary
        self.coefficients = {BALANCE: config.moe.moe_aux_loss_coeff, Z: config.moe.moe_z_loss_coeff}
        self.terms = _Terms()
        for layer in model.modules():
            if isinstance(layer, Experts):
                layer.losses = self.terms
        model.checkpoint_layers = 0  # the terms are those of the one forward pass
        #: The weights of the untrained model, if the loss compares with it.
        self.reference: dict[str, Tensor] = {}
        if objective(config.post_training.train_impl).reference:
            self.reference = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        elif config.post_training.train_impl == "normal":
            model.loss = self._cross_entropy  # type: ignore[assignment]
        self._penalty: Tensor | float = 0.0

    def __call__(self, batch: MicroBatch, share: float, of_terms: float) -> tuple[Tensor, float]:
        """Return what is minimised, (), and the reported loss. share, of_terms: of the step's batch."""
        self.terms.found.clear()
        if self.reference:
            batch = replace(batch, reference=self._of_answers(batch))
        loss: Tensor = self.model(**vars(batch))
        added = sum(self.coefficients.get(name, 0.0) * value for name, value in self.terms.found)
        return (loss + self._penalty) * share + added * of_terms, float(loss) * share

    def _cross_entropy(self, readout: Readout, batch: MicroBatch) -> Tensor:
        counted_T = batch.labels.flatten() != IGNORED
        logits_TV, labels_T = self._logits(readout)[counted_T], batch.labels.flatten()[counted_T]
        count = max(len(labels_T), 1)
        self._penalty = self.config.post_training.z_loss * logits_TV.logsumexp(-1).square().sum() / count
        return F.cross_entropy(logits_TV, labels_T, reduction="sum") / count

    @torch.no_grad()
    def _of_answers(self, batch: MicroBatch) -> Tensor:
        """Return the reference model's log-probability of each answer, (B); 0 for one without preference."""

        def losses(readout: Readout, _: MicroBatch) -> Tensor:
            labels_T = batch.labels.flatten()
            return F.cross_entropy(self._logits(readout), labels_T, reduction="none", ignore_index=IGNORED)

        loss, self.model.loss = self.model.loss, losses  # type: ignore[assignment]
        losses_T: Tensor = functional_call(self.model, self.reference, (), vars(batch))
        self.model.loss = loss
        return -losses_T.view_as(batch.labels).sum(1) * (not self.config.post_training.dpo_reference_free)

    def _logits(self, readout: Readout) -> Tensor:
        embedding = self.config.embedding
        rows = self.vocabulary.padded if embedding.softmax_over_padding else self.vocabulary.size
        logits_TV = F.linear(readout.hidden, readout.weight)[..., :rows].flatten(0, -2).float()
        bound = embedding.final_logit_softcapping
        return bound * torch.tanh(logits_TV / bound) if bound else logits_TV


class _Terms(AddedLosses):
    """Collects the terms of the loss instead of beginning their backward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, Tensor]] = []

    def add(self, x: Tensor, terms: Mapping[str, Term]) -> Tensor:
        self.found += [(name, term.value) for name, term in terms.items()]
        return x


def steps(arguments: RankArguments, process: setup.Process) -> tuple[nn.Module, list[Step], Properties]:
    """Train as the configuration says; return the model, what each step measured, and properties. Raises Problems.

    The properties are those of the untrained model, in training, where other kernels may run than in evaluation.
    """
    config = arguments.config
    model, batches = model_and_data(arguments, process)
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    minimise, updates = Objective(config, model), optimizer(config, trained)
    rate, decay, clip = rates(config), WeightDecay.of(config.get), config.get("gradient_clipping")
    sizes, samples, found = BatchSizes.of(config.get), 0, list[Step]()
    lengths = SequenceLengths.of(config.get)
    model.train()
    first = next(batches)
    tried = _properties(config, minimise, first)
    batches = chain([first], batches)
    for iteration in range(config.training.train_iters):
        size, length = sizes.after(samples), lengths.after(samples)
        accumulated, samples = size // config.batch.train_micro_batch_size_per_gpu, samples + size
        step = [batch.cut(length) if lengths.changes else batch for batch in islice(batches, accumulated)]
        counts = [int((batch.labels != IGNORED).sum()) for batch in step]
        by_token = config.training.loss_average == "tokens"
        shares = [count / max(sum(counts), 1) if by_token else 1 / accumulated for count in counts]
        updates.zero_grad(set_to_none=False)
        loss = 0.0
        for batch, share in zip(step, shares, strict=True):
            minimised, reported = minimise(batch, share, 1 / accumulated)
            minimised.backward()
            loss += reported
        gradients = {name: float(weight.grad.norm()) for name, weight in trained.items() if weight.grad is not None}
        norm = sum(value**2 for value in gradients.values()) ** 0.5
        if clip and norm > clip:
            for weight in trained.values():
                if weight.grad is not None:
                    weight.grad *= clip / norm
        for group in updates.param_groups:
            group["lr"] = rate(iteration) / group["divisor"]
            group["weight_decay"] = group["relative_decay"] * decay.after(iteration)
        updates.step()
        reports = {f"gradient_norms/{name}": value for name, value in gradients.items()}
        found.append(Step(iteration + 1, loss, rate(iteration), size, samples, norm, 0.0, 0.0, reports=reports))
    return model, found, tried


def _properties(config: Config, minimise: Objective, batch: MicroBatch) -> Properties:
    if config.moe.moe_num_experts > 1:  # no slopes: a small step may send tokens to other experts
        return _of_routers(config.moe.moe_num_experts, minimise, batch)
    if config.post_training.train_impl == "kto":  # its loss has a part without gradient
        return {}
    found = properties.of_gradients(minimise.model, lambda: minimise(batch, 1.0, 1.0)[0])
    if config.post_training.train_impl == "normal":
        with torch.no_grad():
            found |= properties.of_attention(lambda change: minimise(change(batch), 1.0, 1.0)[1], config)
    return found


def _of_routers(experts: int, minimise: Objective, batch: MicroBatch) -> Properties:
    """Return the terms of routers of zeros, and what follows from equal probabilities of all experts."""
    weights = [weight for name, weight in minimise.model.named_parameters() if name.endswith("router.weight")]
    before = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        for weight in weights:
            weight.zero_()
    minimise(batch, 1.0, 1.0)
    terms = dict(minimise.terms.found)
    with torch.no_grad():
        for weight, old in zip(weights, before, strict=True):
            weight.copy_(old)
    equal = {BALANCE: 1.0, Z: math.log(experts) ** 2}
    return {f"{properties.EQUAL}: {name}": (float(terms[name]), value) for name, value in equal.items()}
