"""DeepSpeed's own support of Slurm: its runner starts `srun` with a rank for each slot of the hostfile.

Unlike it, `launcher: srun` does not use DeepSpeed's runner and needs no hostfile. `srun` passes the complete
environment on, and DeepSpeed's runner repeats the variables that it exports on the command line.
"""

from __future__ import annotations

from neoxargs.base.record import replace
from neoxargs.hosts.launchers.deepspeed import THROUGH_RUNNER

SLURM = replace(THROUGH_RUNNER, name="slurm", program="sinfo", inherits_environment=True, needs_every_slot=True)
