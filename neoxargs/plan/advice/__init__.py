"""Changes that make a run fit, or faster."""
