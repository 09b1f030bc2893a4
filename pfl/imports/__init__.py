"""What is found by name: what may be named, what arguments declare, and plug-ins."""
