"""Import DeepSpeed and megatron-core without optional packages that no rank uses, which halves the time.

DeepSpeed tries to import transformers and torch's compiler (torch._dynamo, torch._inductor), and megatron-core tries to
import wandb; both work without them. Code that needs these packages later, such as `torch.compile` and the wandb
tracker, imports them at that point.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple

import torch

from neoxargs.train.deepspeed.interface import replaced

#: Optional imports of DeepSpeed 0.19 and megatron-core 0.16, in `try` statements that accept an ImportError.
UNUSED = ("transformers", "wandb")
COMPILER = ("torch._dynamo", "torch._inductor")
#: A module that imports torch's compiler, and that DeepSpeed imports unconditionally for a pass of its own compiler.
PARTITIONERS = "torch._functorch.partitioners"
#: The modules that every rank imports; the first two import nearly all others.
MODULES = (
    "deepspeed", "megatron.core.datasets.blended_dataset", "deepspeed.module_inject", "deepspeed.moe.utils",
)  # fmt: skip
#: When an import is blocked, and why; completes the message of the ImportError.
WHILE = "on purpose while deepy imports DeepSpeed and megatron-core, which work without it and load faster"


@functools.cache
def import_packages(compiles: bool = False) -> None:
    """Import DeepSpeed and megatron-core, as far as every rank needs them.

    compiles: whether torch compiles layers, which call functions of DeepSpeed; its compiler is then imported too.
    """
    with ExitStack() as stack:
        refusal = _Refusal(UNUSED if compiles else UNUSED + COMPILER)
        sys.meta_path.insert(0, refusal)
        stack.callback(sys.meta_path.remove, refusal)
        if not compiles:
            if PARTITIONERS not in sys.modules:
                sys.modules[PARTITIONERS] = _Partitioners(PARTITIONERS)
                stack.callback(sys.modules.pop, PARTITIONERS)
            stack.enter_context(_deferred_compiler())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # megatron-core recommends Transformer Engine and Apex, which are not used
        for name in MODULES:
            import_module(name)


class _Refusal(NamedTuple):
    """A finder of modules that finds none and refuses those of these names."""

    names: Sequence[str]

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name in self.names:
            raise ModuleNotFoundError(f"{name} is blocked {WHILE}", name=name)
        return None


class _Partitioners(ModuleType):
    """Stands for PARTITIONERS, which is imported when DeepSpeed first uses it."""

    def __getattr__(self, name: str) -> Any:
        # The import system asks modules for attributes such as `__spec__`, which must not import the real module.
        if sys.modules.get(PARTITIONERS) is self:
            raise AttributeError(name)
        return getattr(import_module(PARTITIONERS), name)


@contextmanager
def _deferred_compiler() -> Iterator[None]:
    """Let decorators of DeepSpeed not import torch's compiler.

    `torch.compile` compiles at the first call. `torch.compiler.disable`, which keeps the compiler out of a function,
    returns the function itself: DeepSpeed's functions are not called within what flex attention compiles.
    """
    compiler: Any = torch.compile

    def compile_later(function: Callable[..., Any] | None = None, **options: Any) -> Any:
        if function is None:
            return functools.partial(compile_later, **options)
        compiled = functools.cache(lambda: compiler(function, **options))
        return functools.wraps(function)(lambda *arguments, **named: compiled()(*arguments, **named))

    def unchanged(function: Callable[..., Any] | None = None, **options: Any) -> Any:
        return function or (lambda decorated: decorated)

    with replaced(torch, compile=compile_later), replaced(torch.compiler, disable=unchanged):
        yield
