"""Clients at remote sites: one engine, and transports that carry bytes."""
