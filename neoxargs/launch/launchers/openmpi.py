"""Open MPI's `mpirun`, which DeepSpeed's runner finds by `ompi_info`."""

from __future__ import annotations

from dataclasses import replace

from neoxargs.launch.launchers.deepspeed import MPIRUN

OPENMPI = replace(MPIRUN, name="openmpi", program="ompi_info")
