"""The tables of papers: run once, kept, and printed beside the reported numbers."""
