"""Set up a process as a rank: device, process groups, seeds; its memory use and its error reports."""
