"""Clients that are held out of training, join the trained federation, and are tested then.

See ``docs/joining.md``.
"""
