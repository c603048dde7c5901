"""Intel MPI's `mpirun`; DeepSpeed's runner starts the same number of ranks on every host."""

from __future__ import annotations

from dataclasses import replace

from neoxargs.launch.launchers.deepspeed import MPIRUN

IMPI = replace(MPIRUN, name="impi", program="mpirun", even_slots=True)
