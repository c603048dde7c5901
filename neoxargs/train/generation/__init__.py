"""Text generation: the loop over tokens, sampling, and log-probabilities of given tokens."""
