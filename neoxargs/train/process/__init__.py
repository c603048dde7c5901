"""A bare process becomes a rank: device, process groups, seeds, memory, how it reports a failure."""
