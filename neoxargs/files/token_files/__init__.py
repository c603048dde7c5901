"""Token files without torch: their index, the labels that belong to them, and how documents are packed into samples.

Both the launcher, before it starts the ranks, and the ranks read them. numpy is imported when a file is read.
"""
