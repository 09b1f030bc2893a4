"""What the mission can do without: each folder enters by the entry points that plug-ins use.

Nothing outside a folder imports it, so that it can be removed and the rest stays whole.
"""
