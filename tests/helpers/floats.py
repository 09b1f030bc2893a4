"""What many methods send in a round; a method's tests take theirs as ``floats``."""

from __future__ import annotations


def of_network(module):
    """Count the network's parameters, both ways."""
    return (sum(p.numel() for p in module.net.parameters()),) * 2


def of_backbone(module):
    """Count the backbone's parameters, both ways."""
    return (sum(p.numel() for p in module.net.backbone.parameters()),) * 2
