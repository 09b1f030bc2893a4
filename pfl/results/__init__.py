"""Folders of runs, read and drawn; nothing here imports torch."""
