"""DeepSpeed's optimizer and schedule: sections `optimizer` and `scheduler`, with the parameters of every type.

`used_by_types` holds types in lower case; an optimizer's type is compared without regard to case. In the parameters'
text, None means that the type's own default holds, where types differ in it.
"""

from __future__ import annotations

from neoxargs.registry import data_file

data_file.declare(__name__, "optimizer", "optimizer.params", "scheduler", "scheduler.params")
