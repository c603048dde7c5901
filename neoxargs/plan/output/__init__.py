"""A plan as text, JSON or one HTML page."""
