"""What a person sees of a launch before it starts."""
