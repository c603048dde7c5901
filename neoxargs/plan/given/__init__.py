"""What a plan assumes: devices, hosts, placement of ranks, rates."""
