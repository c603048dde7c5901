"""Time of a step: operations, memory traffic, communication."""
