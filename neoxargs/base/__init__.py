"""Words and files that every room uses: problems, text, records, atomic writing, charts."""
