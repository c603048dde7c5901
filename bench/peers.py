"""Train the GPT of a configuration file without deepy, for comparison: `python bench/peers.py KIND FILE`.

`plain` is a GPT in plain torch, written for this comparison: fused attention, weights of the output layer tied to those
of the embedding, learned positions. `transformers` is its GPTNeoX of the same shape, which has rotary positions, and
`mixtral` its Mixtral. All run in one process with a loop of a few lines: torch's fused AdamW, gradient clipping, and
one line of output per step. `kernels` is not a trainer: its steps consist of a step's matrix products and attention,
forward and backward, and nothing else. It is an upper bound for any trainer that uses torch's kernels.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Attention and feed-forward: (batch, seq, hidden) -> (batch, seq, hidden)."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.mixed, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.wide, self.narrow = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.mixed(self.norm_1(x)).chunk(3, dim=-1)
        )  # (batch, heads, seq, head_dim)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.norm_2(x))))


class PlainGPT(nn.Module):
    """Tokens (batch, seq) -> logits (batch, seq, vocabulary)."""

    def __init__(self, config: dict[str, Any], vocabulary: int) -> None:
        super().__init__()
        hidden = config["hidden_size"]
        self.tokens, self.positions = nn.Embedding(vocabulary, hidden), nn.Embedding(config["seq_length"], hidden)
        self.blocks = nn.Sequential(
            *(Block(hidden, config["num_attention_heads"]) for _ in range(config["num_layers"]))
        )
        self.norm = nn.LayerNorm(hidden)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return F.linear(self.norm(self.blocks(x)), self.tokens.weight)


def plain(config: dict[str, Any], vocabulary: int) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    model = PlainGPT(config, vocabulary)
    return model, model


def transformers(config: dict[str, Any], vocabulary: int) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    shape = GPTNeoXConfig(
        vocab_size=vocabulary, hidden_size=config["hidden_size"], num_hidden_layers=config["num_layers"],
        num_attention_heads=config["num_attention_heads"], intermediate_size=4 * config["hidden_size"],
        max_position_embeddings=config["max_position_embeddings"], attention_dropout=0.0, hidden_dropout=0.0,
        use_parallel_residual=False, tie_word_embeddings=True, use_cache=False, attn_implementation="sdpa",
    )  # fmt: skip
    model = GPTNeoXForCausalLM(shape)
    return model, lambda tokens: model(input_ids=tokens).logits


def mixtral(config: dict[str, Any], vocabulary: int) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    from transformers import MixtralConfig, MixtralForCausalLM

    shape = MixtralConfig(
        vocab_size=vocabulary, hidden_size=config["hidden_size"], num_hidden_layers=config["num_layers"],
        num_attention_heads=config["num_attention_heads"], num_key_value_heads=config["num_attention_heads"],
        intermediate_size=config["intermediate_size"] // 3, num_local_experts=config["moe_num_experts"],
        num_experts_per_tok=config["moe_top_k"], max_position_embeddings=config["max_position_embeddings"],
        tie_word_embeddings=True, use_cache=False, attn_implementation="sdpa",
    )  # fmt: skip
    model = MixtralForCausalLM(shape)
    return model, lambda tokens: model(input_ids=tokens).logits


def kernels(config: dict[str, Any], vocabulary: int) -> Callable[[], None]:
    """Return a function that computes a step's matrix products and attention and discards the results."""
    hidden, heads, seq = config["hidden_size"], config["num_attention_heads"], config["seq_length"]
    layers, batch = config["num_layers"], config["train_batch_size"]
    # Rows of the matrices of a layer that read the residual stream, then those of the output layer.
    outputs = [3 * hidden, hidden, 4 * hidden], [vocabulary]
    shapes = [(rows, hidden) for rows in outputs[0] * layers + outputs[1]] + [(hidden, 4 * hidden)] * layers
    products = [
        (torch.randn(batch * seq, columns), torch.randn(rows, columns), torch.randn(batch * seq, rows))
        for rows, columns in shapes
    ]
    query, key, value = (torch.randn(batch, heads, seq, hidden // heads, requires_grad=True) for _ in range(3))

    def step() -> None:
        for x, weight, gradient in products:
            # Forward, gradient of the input, gradient of the weight.
            torch.mm(x, weight.T)
            torch.mm(gradient, weight)
            torch.mm(gradient.T, x)
        for _ in range(layers):
            attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            # The output serves as its own gradient: values do not affect the time.
            torch.autograd.grad(attended, (query, key, value), attended)

    return step


#: Name -> the model and a function from tokens to logits.
KINDS = {"plain": plain, "transformers": transformers, "mixtral": mixtral}


def main() -> None:
    kind, file = sys.argv[1:]
    config = json.loads(Path(file).read_text())
    vocabulary = -(-len(json.loads(Path(config["vocab_file"]).read_text())["model"]["vocab"]) // 64) * 64
    if kind == "kernels":
        repeat(kernels(config, vocabulary), config["train_iters"])
    else:
        train(kind, config, vocabulary)


def repeat(step: Callable[[], None], steps: int) -> None:
    for number in range(1, steps + 1):
        step()
        print(f"iteration {number}/{steps}", flush=True)


def train(kind: str, config: dict[str, Any], vocabulary: int) -> None:
    model, logits_of = KINDS[kind](config, vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), config["optimizer"]["params"]["lr"], fused=True)
    tokens = torch.from_numpy(np.fromfile(config["data_path"] + ".bin", np.uint16).astype(np.int64))
    seq, batch, steps = config["seq_length"], config["train_batch_size"], config["train_iters"]
    rows = tokens[: len(tokens) // (seq + 1) * (seq + 1)].view(-1, seq + 1)
    for step in range(1, steps + 1):
        samples = rows[torch.arange(step * batch, (step + 1) * batch) % len(rows)]  # (batch, seq + 1)
        logits = logits_of(samples[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config["gradient_clipping"])
        optimizer.step()
        optimizer.zero_grad()
        print(f"iteration {step}/{steps} | loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
