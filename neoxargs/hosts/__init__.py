"""Machines and devices: hostfiles, Slurm allocations, which ranks run where."""
