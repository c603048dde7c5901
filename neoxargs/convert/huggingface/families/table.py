"""The model families, one table each: the keys and weights of transformers that correspond to ours."""

from neoxargs.convert.huggingface.families.gemma import GEMMA2, GEMMA3
from neoxargs.convert.huggingface.families.gpt2 import GPT2
from neoxargs.convert.huggingface.families.llama import LLAMA, MISTRAL
from neoxargs.convert.huggingface.families.mamba import MAMBA
from neoxargs.convert.huggingface.families.mixture import MIXTRAL, OLMOE
from neoxargs.convert.huggingface.families.neox import NEOX
from neoxargs.convert.huggingface.families.olmo import OLMO2
from neoxargs.convert.huggingface.families.phi import PHI3
from neoxargs.convert.huggingface.families.qwen import QWEN2, QWEN3

#: Architecture -> family, in the order in which `export` tries them.
FAMILIES = {
    family.architecture: family
    for family in (NEOX, GPT2, LLAMA, MISTRAL, QWEN2, QWEN3, OLMO2, GEMMA2, GEMMA3, PHI3, MIXTRAL, OLMOE, MAMBA)
}  # fmt: skip
