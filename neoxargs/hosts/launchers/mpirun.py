"""The `mpirun` of each MPI, which DeepSpeed's runner starts; most start the same number of ranks on every host."""

from __future__ import annotations

from neoxargs.base.record import replace
from neoxargs.hosts.launchers.deepspeed import THROUGH_RUNNER

_MPIRUN = replace(THROUGH_RUNNER, program="mpirun", by_ssh=True, needs_every_slot=True, even_slots=True, mpirun=True)

IMPI = replace(_MPIRUN, name="impi")
MPICH = replace(_MPIRUN, name="mpich")
#: DeepSpeed's runner finds MVAPICH by `mpiname`, and Open MPI by `ompi_info`.
MVAPICH = replace(_MPIRUN, name="mvapich", program="mpiname")
OPENMPI = replace(_MPIRUN, name="openmpi", program="ompi_info", even_slots=False)
