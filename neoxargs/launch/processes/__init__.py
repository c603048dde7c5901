"""Running ranks: started, watched, ended together, and which failed first and why."""
