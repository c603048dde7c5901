"""What the shape of a configuration implies, without torch: parameters, vocabulary, layout, optimizer state."""
