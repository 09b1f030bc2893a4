"""Optional features: each folder is registered through the entry points that plug-ins use.

Nothing outside a folder imports it, so that each can be removed.
"""
