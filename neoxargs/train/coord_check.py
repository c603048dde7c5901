"""`save_base_shapes` and `coord_check`, which run on the main rank instead of training.

`save_base_shapes` writes the shapes of the base model for muP. `coord_check` trains the model for a few steps at
several widths on one random batch, and compares the size of each layer's output at the largest and the smallest width
(Yang et al. 2022, arXiv:2203.03466, appendix D.1). With muP the ratio stays near 1; without, it grows at each step.
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

from neoxargs.base.files import replace_text
from neoxargs.config.config import Config
from neoxargs.config.value import Source
from neoxargs.train.losses.cross_entropy import Vocabulary
from neoxargs.train.model import mup
from neoxargs.train.model.documents import unpack
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.optim import build as optimizer
from neoxargs.train.parallel.layers import Shapes, Weights
from neoxargs.train.parallel.widths import BaseShapes, Widths

STEPS, WIDTHS, SAMPLES, TOKENS = 4, 3, 4, 256
#: The parameters that grow with the width of the model; the last three are those of recurrent layers.
WIDENED = ("hidden_size", "intermediate_size", "mamba_inner_size", "dim_att", "ffn_dim")
SOURCE = Source("derived", text="set for coord_check")
#: Layer -> mean absolute value of its output, before the first step and after each step.
Sizes = dict[str, list[float]]


def run(config: Config, device: torch.device) -> None:
    """Run what the configuration asks for, and print the results."""
    if config.mup.save_base_shapes:
        print(f"wrote base shapes to {save_base_shapes(config)}", flush=True)
    if config.mup.coord_check:
        sizes = measure(config, device)
        file = Path(config.logging.run_dir) / "coord_check.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(file, json.dumps(sizes, indent=1) + "\n")
        print(*table_lines(sizes), f"all values: {file}", sep="\n", flush=True)


def table_lines(sizes: Mapping[int, Sizes]) -> Iterator[str]:
    """Yield a line per layer: its output at the largest width / at the smallest width."""
    narrow, wide = min(sizes), max(sizes)
    yield f"mean |output| at hidden_size {wide} / mean |output| at hidden_size {narrow}"
    yield "  before step 1, and after each step"
    for layer, narrow_sizes in sizes[narrow].items():
        ratios = [wide_size / size for size, wide_size in zip(narrow_sizes, sizes[wide][layer], strict=True)]
        yield f"  {layer:<24}" + "".join(f"{ratio:8.2f}" for ratio in ratios)


def measure(config: Config, device: torch.device) -> dict[int, Sizes]:
    """Return the sizes by width: `hidden_size`, then `mup_width_scale` times as wide, and so on."""
    # Dropout would add noise that differs between the widths.
    plain = config.with_values({"attention_dropout": 0.0, "hidden_dropout": 0.0}, SOURCE)
    base = Widths(base_shapes(plain), plain.mup.mup_init_scale) if plain.mup.use_mup else None
    base = mup.widths(plain) if plain.mup.base_shapes_file else base
    models = [widened(plain, plain.mup.mup_width_scale**power) for power in range(WIDTHS)]
    return {model.shape.hidden_size: _sizes_in_training(model, base, device) for model in models}


def save_base_shapes(config: Config) -> Path:
    """Write `base_shapes_file` in the format of the package mup and return its path."""
    path = Path(str(config.mup.base_shapes_file))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, yaml.safe_dump(dict(base_shapes(config)), default_flow_style=None))
    return path


def base_shapes(config: Config) -> BaseShapes:
    """Return this configuration's shapes, with None for dimensions that do not grow with the width."""
    wide = _shapes_of_weights(widened(config, config.mup.mup_width_scale))
    return {
        name: [size if size != wide_size else None for size, wide_size in zip(shape, wide[name], strict=True)]
        for name, shape in _shapes_of_weights(config).items()
    }


def widened(config: Config, factor: int) -> Config:
    """Return the configuration with all widths times `factor`, and the same number of heads."""
    sizes = {name: config.get(name) for name in WIDENED}
    return config.with_values({name: size * factor for name, size in sizes.items() if size}, SOURCE)


def _sizes_in_training(config: Config, base: Widths | None, device: torch.device) -> Sizes:
    model = GPT(config, Vocabulary(TOKENS, TOKENS), Weights(config.training.seed, widths=base), Shared()).to(device)
    groups = optimizer.parameter_groups(model, 0.0)
    if base is not None:
        groups = mup.divide_groups(groups, dict(model.named_parameters()), base, mup.normalizes_gradients(config))
    stepper = optimizer.build(config, groups)
    assert stepper is not None, "the rules should have rejected muP with an optimizer that DeepSpeed builds"
    for group in stepper.param_groups:
        group["lr"] = config.optimizer_params.lr / group.get("width_mult", 1.0)
    generator = torch.Generator().manual_seed(config.training.seed)
    batch = torch.randint(TOKENS, (SAMPLES, config.shape.seq_length + 1), generator=generator).to(device)
    tokens, labels = batch[:, :-1], batch[:, 1:].contiguous()
    sizes: Sizes = {}
    _append_sizes(model, tokens, sizes)
    for _ in range(STEPS):
        model(tokens, labels).backward()
        stepper.step()
        stepper.zero_grad()
        _append_sizes(model, tokens, sizes)
    return sizes


@torch.no_grad()
def _append_sizes(model: GPT, tokens: Tensor, sizes: Sizes) -> None:
    def note(name: str, _: nn.Module, __: Any, output: Any) -> None:
        sizes.setdefault(name, []).append(float(unpack(output)[0].abs().mean()))

    layers = {f"layers.{index}": layer for index, layer in enumerate(model.layers)}
    attentions = {f"{name}.attention": layer.attention for name, layer in layers.items() if hasattr(layer, "attention")}
    watched = {"positions": model.positions, **attentions, **layers, "output": model}
    hooks = [module.register_forward_hook(partial(note, name)) for name, module in watched.items()]
    model(tokens)
    for hook in hooks:
        hook.remove()


def _shapes_of_weights(config: Config) -> dict[str, list[int]]:
    with torch.device("meta"):
        model = GPT(config, Vocabulary(TOKENS, TOKENS), Shapes(), Shared())
    return {name: list(weight.shape) for name, weight in model.named_parameters()}
