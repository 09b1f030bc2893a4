"""Clients in other processes: messages to them, and the workers and machines that answer."""
