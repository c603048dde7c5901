"""The model on one rank can be exported to ONNX, and the exported graph gives the same logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights
from tests.support.small_gpt import VOCABULARY, batch, randomised, small

#: The first with an operation for GELU.
OPSET = 20


def export(module: torch.nn.Module, example: torch.Tensor) -> Any:
    pytest.importorskip("onnxscript")
    free = ({0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO},)
    return torch.onnx.export(module.eval(), (example,), dynamo=True, opset_version=OPSET, dynamic_shapes=free)


def operations(program: Any) -> set[str]:
    return {node.op_type for node in program.model.graph}


@pytest.mark.filterwarnings("ignore")  # torch's own, about itself
@pytest.mark.shows("onnx-safe")
def test_the_graph_agrees(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = randomised(GPT(small(onnx_safe=True), VOCABULARY, Weights(), Shared()))
    program = export(model, batch(3)[0])
    assert "Erf" in operations(program)
    assert "Gelu" not in operations(program)
    assert "Gelu" in operations(
        export(GPT(small(), VOCABULARY, Weights(), Shared()).layers[0].mlp, torch.randn(3, 16, 32))
    )
    program.save(tmp_path / "gpt.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "gpt.onnx")
    for tokens in (batch(3)[0], batch(2, seed=1)[0][:, :9]):  # other sizes than the example's too
        (logits,) = session.run(None, {session.get_inputs()[0].name: tokens.numpy()})
        torch.testing.assert_close(torch.from_numpy(logits), model(tokens), rtol=1e-4, atol=1e-4)
