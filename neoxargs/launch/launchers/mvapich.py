"""MVAPICH's `mpirun`, which DeepSpeed's runner finds by `mpiname`; the same number of ranks on every host."""

from __future__ import annotations

from dataclasses import replace

from neoxargs.launch.launchers.deepspeed import MPIRUN

MVAPICH = replace(MPIRUN, name="mvapich", program="mpiname", even_slots=True)
