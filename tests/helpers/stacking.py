"""Networks under ``torch.func.vmap`` over clients, compared with single ones."""

from __future__ import annotations

import torch
from torch.func import functional_call, stack_module_state, vmap


def check_stacked(nets, shape, **tolerance):
    """Check that stacked networks give the logits and buffers of each network alone."""
    parameters, buffers = stack_module_state(nets)
    x = torch.rand(len(nets), 5, *shape, dtype=next(nets[0].parameters()).dtype)
    together = vmap(lambda p, b, x: functional_call(nets[0], (p, b), (x,)))(parameters, buffers, x)
    for client, net in enumerate(nets):
        torch.testing.assert_close(net(x[client]), together[client], **tolerance)
        for name, buffer in net.named_buffers():
            torch.testing.assert_close(buffer, buffers[name][client])
