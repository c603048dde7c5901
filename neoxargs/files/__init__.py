"""What lies on disk, read without torch."""
