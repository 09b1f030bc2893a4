"""Objects found by name: those that may be named, types of arguments, and plug-ins."""
