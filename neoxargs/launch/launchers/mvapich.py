"""MVAPICH's `mpirun`, found by `mpiname`; DeepSpeed's runner starts the same number of ranks on every host."""

from __future__ import annotations

from dataclasses import replace

from neoxargs.launch.launchers.deepspeed import MPIRUN

MVAPICH = replace(MPIRUN, name="mvapich", program="mpiname", even_slots=True)
