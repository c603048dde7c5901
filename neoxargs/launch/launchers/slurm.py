"""DeepSpeed's own use of Slurm: its runner starts `srun` with a rank for each slot of the hostfile.

`launcher: srun` is ours and needs no hostfile. `srun` hands the whole environment over; DeepSpeed's runner repeats
what it exports on the command line.
"""

from __future__ import annotations

from dataclasses import replace

from neoxargs.launch.launchers.deepspeed import THROUGH_RUNNER

SLURM = replace(THROUGH_RUNNER, name="slurm", program="sinfo", inherits_environment=True, needs_every_slot=True)
