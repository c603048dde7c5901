"""Text from a model: the loop over tokens, sampling, log-probabilities of given tokens."""
