"""Clients that stay at their sites: one engine, and a transport that carries bytes."""
