"""precision, fp16.enabled and bf16.enabled are the same setting."""

from __future__ import annotations

import pytest

from tests.support.configure import configure


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("", "fp32"),
        ("precision: fp32", "fp32"),
        ("precision: fp16", "fp16"),
        ("precision: bf16", "bfloat16"),
        ("precision: bfloat16", "bfloat16"),
        ("precision: half", "fp16"),
        ("precision: float16", "fp16"),
        ("precision: float32", "fp32"),
        ("precision: float", "fp32"),
        ("{precision: half, fp16: {enabled: true}}", "fp16"),
        ("fp16: {enabled: true}", "fp16"),
        ("fp16: {enabled: false}", "fp32"),
        ("fp16: {enabled: auto}", "fp32"),
        ("{precision: fp16, fp16: {enabled: auto}, bf16: {enabled: auto}}", "fp16"),
        ("bf16: {enabled: true}", "bfloat16"),
        ("{bf16: {enabled: true}, fp16: {enabled: false}}", "bfloat16"),
        ("{precision: fp16, fp16: {loss_scale_window: 500}}", "fp16"),
        ("{precision: bfloat16, bf16: {enabled: true}}", "bfloat16"),
        ("fp16: {type: bfloat16, enabled: true}", "bfloat16"),
        ("fp16: {type: fp16, enabled: true}", "fp16"),
    ],
)
def test_the_precision(text: str, precision: str) -> None:
    config = configure(text)
    assert config.precision.precision == precision
    assert config.fp16.enabled == (precision == "fp16")
    assert config.bf16.enabled == (precision == "bfloat16")


@pytest.mark.parametrize(
    ("text", "dynamic", "scale"),
    [
        ("precision: fp16", True, None),
        ("fp16: {enabled: true, loss_scale: 0}", True, None),
        ("{precision: fp16, loss_scale: 0}", True, 0),
        ("{precision: fp16, loss_scale: 1024}", False, 1024.0),
        ("fp16: {enabled: true, loss_scale: 1024}", False, 1024.0),
    ],
)
def test_a_loss_scale_of_0_is_dynamic(text: str, dynamic: bool, scale: float | None) -> None:
    precision = configure(text).precision
    assert (precision.dynamic_loss_scale, precision.loss_scale) == (dynamic, scale)


def test_gradients_are_summed_in_fp32_on_request() -> None:
    assert configure().gradients.communication_data_type is None
    assert configure("fp32_allreduce: true").gradients.communication_data_type == "fp32"
    assert (
        configure("{fp32_allreduce: true, communication_data_type: bf16}").gradients.communication_data_type == "bf16"
    )
