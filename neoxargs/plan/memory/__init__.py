"""Memory of a rank in bytes: weights, model states and activations, added up for each phase of a step."""
