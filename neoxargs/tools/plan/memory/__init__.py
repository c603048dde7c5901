"""What a rank's device holds, in bytes: weights, states, activations, and how they add up in each phase."""
