"""Checks of this machine, its packages and disks, the launcher and the other hosts."""
