"""What `save_base_shapes` and `coord_check` do instead of training, on the main rank alone.

The first writes the shapes that muP scales from. The second trains the model a few steps at several widths, on one
random batch, and says how much larger what its layers give is in the widest than in the narrowest: about as large with
muP, ever larger without.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from neoxargs.resolve.config import Config
from neoxargs.resolve.value import Source, Value
from neoxargs.train.kernels.cross_entropy import Vocabulary
from neoxargs.train.model import mup
from neoxargs.train.model.documents import unpack
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.widths import BaseShapes, Widths
from neoxargs.train.optim import build as optimizer
from neoxargs.train.parallel.make import Make, Shapes

STEPS, WIDTHS, SAMPLES, TOKENS = 4, 3, 4, 256
#: Layer -> mean size of the numbers that it gives, before the first step and after each.
Sizes = dict[str, list[float]]


def run(config: Config, device: torch.device) -> None:
    """Both, as the configuration asks."""
    if config.mup.save_base_shapes:
        print(f"wrote base shapes to {save_base_shapes(config)}", flush=True)
    if config.mup.coord_check:
        found = measure(config, device)
        file = Path(config.logging.run_dir) / "coord_check.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(*table_lines(found), f"all values: {file}", sep="\n", flush=True)


def table_lines(found: Mapping[int, Sizes]) -> Iterator[str]:
    """A line for each layer: how it grew with the width."""
    narrow, wide = min(found), max(found)
    yield f"mean |output| at hidden_size {wide} / mean |output| at {narrow}, before step 1 and after each step"
    for layer, sizes in found[narrow].items():
        ratios = [other / mine for mine, other in zip(sizes, found[wide][layer], strict=True)]
        yield f"  {layer:<24}" + "".join(f"{ratio:8.2f}" for ratio in ratios)


def measure(config: Config, device: torch.device) -> dict[int, Sizes]:
    """By width: `hidden_size`, then `mup_width_scale` times as wide and so on."""
    plain = _changed(config, {"attention_dropout": 0.0, "hidden_dropout": 0.0})
    base = mup.widths(plain) if plain.mup.base_shapes_file else _own_base(plain)
    models = [widened(plain, plain.mup.mup_width_scale**power) for power in range(WIDTHS)]
    return {model.shape.hidden_size: _trained(model, base, device) for model in models}


def save_base_shapes(config: Config) -> Path:
    """Write `base_shapes_file`, in the format of the package mup."""
    path = Path(str(config.mup.base_shapes_file))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(yaml.safe_dump(dict(base_shapes(config)), default_flow_style=None), encoding="utf-8")
    return part.replace(path)


def base_shapes(config: Config) -> BaseShapes:
    """This configuration's shapes, with None for what stays when it gets `mup_width_scale` times as wide."""
    wide = _shapes(widened(config, config.mup.mup_width_scale))
    return {
        name: [mine if mine != other else None for mine, other in zip(shape, wide[name], strict=True)]
        for name, shape in _shapes(config).items()
    }


def widened(config: Config, factor: int) -> Config:
    """The same model so many times as wide: hidden and feed-forward size, with as many heads."""
    shape = config.shape
    sizes = {"hidden_size": shape.hidden_size * factor, "intermediate_size": shape.intermediate_size * factor}
    return _changed(config, sizes)


def _changed(config: Config, changes: Mapping[str, Any]) -> Config:
    source = Source("derived", text="other widths are measured")
    values = config.values | {name: Value(value, source) for name, value in changes.items()}
    return Config(values, config.sections, config.warnings, config.dialect)


def _own_base(config: Config) -> Widths | None:
    return Widths(base_shapes(config), config.mup.mup_init_scale) if config.mup.use_mup else None


def _trained(config: Config, base: Widths | None, device: torch.device) -> Sizes:
    model = GPT(config, Vocabulary(TOKENS, TOKENS), Make(config.training.seed, widths=base)).to(device)
    groups = optimizer.parameter_groups(model, 0.0)
    if base is not None:
        groups = mup.divide_groups(groups, dict(model.named_parameters()), base, mup.normalizes_gradients(config))
    steps = optimizer.build(config, groups)
    assert steps is not None, "rules let muP have no optimizer of DeepSpeed's"
    for group in steps.param_groups:
        group["lr"] = config.optimizer_params.lr / group.get("width_mult", 1.0)
    generator = torch.Generator().manual_seed(config.training.seed)
    text = torch.randint(TOKENS, (SAMPLES, config.shape.seq_length + 1), generator=generator).to(device)
    tokens, labels = text[:, :-1], text[:, 1:].contiguous()
    found: Sizes = {}
    _measure(model, tokens, found)
    for _ in range(STEPS):
        model(tokens, labels).backward()
        steps.step()
        steps.zero_grad()
        _measure(model, tokens, found)
    return found


@torch.no_grad()
def _measure(model: GPT, tokens: Tensor, found: Sizes) -> None:
    def note(name: str, _: nn.Module, __: Any, output: Any) -> None:
        found.setdefault(name, []).append(float(unpack(output)[0].abs().mean()))

    layers = {f"layers.{index}": layer for index, layer in enumerate(model.layers)}
    inside = {f"{name}.attention": layer.attention for name, layer in layers.items()}
    watched = {"positions": model.positions, **inside, **layers, "output": model}
    hooks = [module.register_forward_hook(partial(note, name)) for name, module in watched.items()]
    model(tokens)
    for hook in hooks:
        hook.remove()


def _shapes(config: Config) -> dict[str, list[int]]:
    with torch.device("meta"):
        model = GPT(config, Vocabulary(TOKENS, TOKENS), Shapes())
    return {name: list(weight.shape) for name, weight in model.named_parameters()}
