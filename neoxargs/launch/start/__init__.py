"""From the finished checks to running ranks: preparation, start, restarts."""
