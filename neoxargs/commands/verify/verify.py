"""The trials of a configuration and what they show, setting by setting."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from neoxargs.base.problems import Problems, sentence
from neoxargs.base.record import Record, replace
from neoxargs.commands.verify import judge, trials
from neoxargs.commands.verify.judge import FP32, HALF, Verdict
from neoxargs.commands.verify.settings import TRIES, Setting, settings
from neoxargs.commands.verify.shrink import SHORT, STEPS, Small, Values, in_fp32, one_process, shrink
from neoxargs.commands.verify.trials import Observed
from neoxargs.config.config import Config
from neoxargs.facts.lr_schedule import rates
from neoxargs.facts.model import DRAWS
from neoxargs.facts.optimizers import is_onebit
from neoxargs.facts.trained import is_frozen, trained_parameters
from neoxargs.runs.run_spec import RunSpec
from neoxargs.targets.trial import Trial
from neoxargs.targets.wire_format import script_arguments

#: Told of each trial that ends, and of the number of all trials.
Progress = Callable[[str, int], None]
#: Draws random numbers in training, which evaluations must not.
DROPOUT: Values = {"hidden_dropout": 0.3, "attention_dropout": 0.3}
#: Parameters that decide how a step changes the weights.
UPDATE = (
    "optimizer.type", "optimizer.params.lr", "optimizer.params.betas", "optimizer.params.eps", "weight_decay",
    "gradient_clipping", "lr_decay_style", "min_lr", "warmup", "loss_average", "gradient_accumulation_steps",
)  # fmt: skip
SCHEDULE = ("lr_decay_style", "warmup", "min_lr")
LAYOUT = (
    "model_parallel_size", "pipe_parallel_size", "context_parallel_size", "context_parallel_style",
    "zero_optimization.stage", "sequence_parallel", "moe_expert_parallel_size",
)  # fmt: skip


class Report(Record):
    """What all trials of a configuration showed."""

    small: Small
    base: Config
    properties: tuple[Verdict, ...]
    """Of the whole run."""
    settings: tuple[Verdict, ...]
    """Of every parameter that the user set."""
    count: int
    """Number of trials."""

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return self.properties + self.settings


def verify(spec: RunSpec, folder: Path, progress: Progress) -> Report:
    """Run all trials of a configuration in a folder; raises Problems if the small run itself is refused."""
    with trials.Program() as program:
        return _Trials(spec, folder, progress, program).report()


class _Trials:
    def __init__(self, spec: RunSpec, folder: Path, progress: Progress, program: trials.Program) -> None:
        assert spec.draft
        self.program = program
        self.folder, self.progress = folder.absolute(), progress
        self.small = shrink(spec.config, spec.draft, self.folder / "data")
        self.base = self.small.config(self.folder / "base", {})
        self.half = self.base.get("precision") not in (None, "fp32")
        self.seen: dict[str, Observed] = {}
        self.total = 0

    def report(self) -> Report:
        found = list(settings(self.small, self.base, self.folder / "tried"))
        tried = [setting for setting in found if setting.others]
        self.total = len(tried) + 10
        exact, short = one_process(self.small), self._short()
        half_way = {"load": str(self.folder / "first half" / "checkpoints")}
        alone = (
            self._trial("one process", exact, 1, with_properties=True),
            self._trial("plain torch", exact, 1, "one process", in_plain_torch=True) if self._in_torch() else (),
        )
        self._run("alone", chain(*alone), 1)
        layout = (
            self._trial("fp32", in_fp32(self.small.full), None, "one process", with_properties=True),
            self._trial("base", {}, None, with_properties=True),
            self._trial("first half", {"exit_interval": STEPS // 2}),
            self._trial("second half", half_way),
            self._trial("finetuned", {**half_way, "finetune": True, **short}),
            self._trial("with dropout", {**DROPOUT, **short}, with_properties=True),
            self._trial("short", short),
            self._trial("again", short),
            self._others(tried, 0),
        )
        self._run("layout", chain(*layout))
        for number in range(1, TRIES):
            unclear = [each for each in tried if len(each.others) > number and self._judged(each).outcome != "shown"]
            unclear = [each for each in unclear if each.expected != "rounding"]
            if unclear:
                self._run(f"tries {number}", self._others(unclear, number))
        verdicts = [(self._judged(each), self.small.full.is_set(each.name)) for each in found]
        unset = (replace(verdict, name=f"{verdict.name} (default)") for verdict, is_set in verdicts if not is_set)
        properties = (*self._properties(), *unset)
        return Report(
            self.small, self.base, properties, tuple(each for each, is_set in verdicts if is_set), len(self.seen)
        )

    def _in_torch(self) -> bool:
        """Return whether plain torch can do what the optimizer does."""
        kind, params = (self.base.optimizer.type or "adam").lower(), self.base.optimizer_params
        if is_onebit(kind):
            self.seen["plain torch"] = {"refused": [f"plain torch has no optimizer that compresses ({kind})"]}
        elif not params.bias_correction and kind != "lamb":
            self.seen["plain torch"] = {"refused": ["torch's Adam always corrects the bias of its moments"]}
        return "plain torch" not in self.seen

    def _short(self) -> Values:
        """Return the changes after which a run ends early, with the same schedule."""
        length: Values = {"train_iters": SHORT}
        if not self.small.full.is_set("lr_decay_fraction") and not self.base.schedule.lr_schedule:
            length["lr_decay_iters"] = self.base.get("lr_decay_iters")
        return length

    def _trial(
        self, name: str, changes: Values, ranks: int | None = None, reference: str = "", **kind: bool
    ) -> Iterator[Trial]:
        """Yield the trial, unless its configuration is refused."""
        where = str(self.folder / reference / "checkpoints") if reference else ""
        try:
            config = self.small.config(self.folder / name, changes, ranks)
            yield Trial(name, script_arguments(config), where, **kind)
        except Problems as refused:
            self.seen[name] = {"refused": [sentence(refused.problems[0])]}

    def _others(self, tried: Sequence[Setting], number: int) -> Iterator[Trial]:
        for each in tried:
            yield from self._trial(f"{each.name} {number}", {**self._short(), **each.others[number]})

    def _run(self, name: str, chosen: Iterable[Trial], ranks: int | None = None) -> None:
        file = self.folder / f"{name}.jsonl"
        size = ranks or self.small.ranks
        self.seen |= self.program.run(list(chosen), size, file, lambda done: self.progress(done, self.total))

    def _refused(self, *names: str) -> str:
        """Return why the first of these trials that did not run was refused; "" if all ran."""
        return next((self.seen[name]["refused"][0] for name in names if "refused" in self.seen[name]), "")

    # What the trials say.

    def _judged(self, each: Setting) -> Verdict:
        if reason := each.reason or self._refused("base", "short"):
            return Verdict(each.name, "not shown", reason)
        if each.others:
            others = [self.seen[name] for number in range(TRIES) if (name := f"{each.name} {number}") in self.seen]
            return judge.setting(each, self.seen["short"], others, self.half)
        return self._by_other_trials(each.name)

    def _by_other_trials(self, name: str) -> Verdict:
        if name == "load":
            return Verdict(name, *self._resumed())
        if name == "finetune":
            return Verdict(name, *self._finetuned())
        ranks = self.base.get("context_parallel_size" if name == "context_parallel_style" else name)
        if ranks <= 1 and not (name == "pipe_parallel_size" and ranks):
            return Verdict(name, "not shown", "the model is not divided")
        return Verdict(name, *self._same_in_one_process())

    def _same_in_one_process(self) -> tuple[judge.Outcome, str]:
        if refused := self._refused("fp32", "one process"):
            return "not shown", f"the run in fp32 or in one process is refused: {refused}"
        ours, alone = self.seen["fp32"], self.seen["one process"]
        if clause := judge.difference(ours, alone, FP32) or judge.weights_differ(ours, alone, FP32.weight):
            return "contradicted", clause
        return "shown", f"{len(ours['losses'])} losses, the gradients of step 1 and the final weights agree in fp32"

    def _resumed(self) -> tuple[judge.Outcome, str]:
        if refused := self._refused("first half", "second half"):
            return "not shown", refused
        whole, resumed = self.seen["base"], self.seen["second half"]
        if resumed["losses"] and resumed["digest"] == whole["digest"]:
            return "shown", f"stopped after {STEPS // 2} steps and continued: the same weights, bit for bit"
        count = len(resumed["losses"])
        pairs = zip(whole["losses"][-count:], resumed["losses"], strict=False)
        first = next((f"losses {a:.7g} and {b:.7g}" for a, b in pairs if a != b), f"{count} steps, and other weights")
        return "contradicted", f"stopped after {STEPS // 2} steps and continued: {first}"

    def _finetuned(self) -> tuple[judge.Outcome, str]:
        if refused := self._refused("finetuned"):
            return "not shown", refused
        seen = self.seen["finetuned"]
        starts_over = len(seen["losses"]) == SHORT and seen["losses"][0] != self.seen["short"]["losses"][0]
        first = f"the first loss is {seen['losses'][0]:.6g}, that of a new run {self.seen['short']['losses'][0]:.6g}"
        return ("shown" if starts_over else "contradicted"), f"{len(seen['losses'])} steps; {first}"

    def _properties(self) -> Iterator[Verdict]:
        if refused := self._refused("base", "short"):
            yield Verdict("the run", "contradicted", f"it is refused or fails: {refused}")
            return
        yield Verdict("steps are those of plain torch", *self._steps(), keys=UPDATE)
        if self.small.ranks > 1 or self.base.parallel.pipe_parallel_size:
            yield Verdict("ranks compute what one process does", *self._same_in_one_process(), keys=LAYOUT)
        repeats = self.seen["again"].get("digest") == self.seen["short"]["digest"]
        text = "the same weights, bit for bit"
        yield _of("a run repeats itself", "" if repeats else "two runs have other weights", text, ("seed",))
        yield Verdict("a run continues from its checkpoint", *self._resumed(), keys=("save", "load"))
        yield _of("the learning rate follows its formula", self._other_rate(), "all rates", SCHEDULE)
        if self.half and not self._refused("fp32") and not any(self.base.get(name) for name in DRAWS):
            clause = judge.difference(self.seen["base"], self.seen["fp32"], HALF)
            yield _of("the precision only rounds", clause, "the losses agree with those in fp32", ("precision",))
        yield from self._of_the_model()

    def _steps(self) -> tuple[judge.Outcome, str]:
        if refused := self._refused("one process", "plain torch"):
            return "not shown", refused
        alone, plain = self.seen["one process"], self.seen["plain torch"]
        if clause := judge.difference(alone, plain, FP32) or judge.weights_differ(plain, alone, FP32.weight):
            return "contradicted", clause
        return "shown", "losses, gradients and weights agree in fp32"

    def _other_rate(self) -> str:
        """Return the first step whose rate is not that of the formula, as a clause."""
        base, wanted = self.seen["base"], rates(self.base)
        if base["skipped"]:  # the schedule waits where fp16 overflows
            return ""
        pairs = [(step, rate, wanted(step - 1)) for step, rate in enumerate(base["rates"], 1)]
        wrong = [f"step {step} has {rate:.4g} instead of {right:.4g}" for step, rate, right in pairs
                 if not math.isclose(rate, right, rel_tol=1e-6, abs_tol=1e-18)]  # fmt: skip
        return wrong[0] if wrong else ""

    def _of_the_model(self) -> Iterator[Verdict]:
        """Yield the properties that the ranks tried, in the run itself and in fp32 and in those with other values."""
        tried: dict[str, list[tuple[str, float, float]]] = {}
        for trial, seen in self.seen.items():
            for name, pair in seen.get("properties", {}).items():
                subject, _, weight = name.partition(": ")
                tried.setdefault(subject, []).append((f"{trial}, {weight}" if weight else trial, *pair))
        for name, pairs in tried.items():
            wrong = [each for each in pairs if judge.violates(name, *each[1:], self.base.moe.moe_num_experts > 1)]
            clause = f"in {wrong[0][0]}: {wrong[0][1]:.7g} and {wrong[0][2]:.7g}" if wrong else ""
            yield _of(name, clause, f"tried {len(pairs)} times")
        apart = {trial: seen["replicas_differ"] for trial, seen in self.seen.items() if seen.get("replicas_differ")}
        clause = "; ".join(f"trial {trial}: {', '.join(names[:3])}" for trial, names in [*apart.items()][:1])
        if self.small.ranks > 1:
            yield _of("ranks with the same part of the model hold the same numbers", clause, "after all trials", LAYOUT)
        yield self._moved()

    def _moved(self) -> Verdict:
        name = "what is trained moves, and nothing else"
        seen = self.seen["base"]
        trained = trained_parameters(self.base, self.base.get("padded_vocab_size"))
        moved = sum(size for norm, size in seen["moved"].values() if norm)
        still = sorted(weight for weight, (norm, _) in seen["moved"].items() if not norm)
        if moved > trained:
            return Verdict(name, "contradicted", f"{moved:,} numbers moved, and {trained:,} are to be trained")
        if still and not is_frozen(self.base) and self.base.moe.moe_num_experts == 1:
            return Verdict(name, "contradicted", f"these weights do not move: {', '.join(still[:4])}")
        return Verdict(name, "shown", f"{moved:,} of {trained:,} numbers")


def _of(name: str, clause: str, text: str, keys: tuple[str, ...] = ()) -> Verdict:
    return Verdict(name, "contradicted" if clause else "shown", clause or text, keys)
