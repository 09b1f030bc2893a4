"""The Fisher information of one client's model, parameter by parameter."""

from __future__ import annotations

import torch
from torch.func import functional_call

from pfl.core.types import State
from pfl.training.batching import chunks
from pfl.training.context import Context


def fisher_information(context: Context, client: int) -> State:
    """Compute the diagonal of the empirical Fisher information on a client's training data.

    For parameter k it is ``sum_b (d mean_{j in b} loss_j / d W_k)^2`` over the batches b in stored
    order, in eval mode; its sum over all parameters is the trace that FedAS's released code uses.

    Args:
        context: The context, whose module is the model.
        client: The client whose data are used.

    Returns:
        A tensor for each parameter that the outputs depend on, by name; empty without data.
    """
    module, data = context.module, context.data
    module.eval()
    values = {n: p.detach().requires_grad_() for n, p in module.named_parameters()}
    split = data.split(client, "train")
    information: State = {}
    for positions in chunks(len(split), data.batch_size):
        # In the precision of the run, which a participant's own passes have too.
        with torch.enable_grad(), context.fabric.autocast():
            batch = split.batch(positions)
            outputs = functional_call(module, values, (batch.x,))
            loss = module.task.loss(outputs, batch.y, batch.weight)
        slopes = torch.autograd.grad(loss, list(values.values()), allow_unused=True)
        for name, slope in zip(values, slopes, strict=True):
            if slope is not None:
                information[name] = information.get(name, 0) + slope.square()
    return information
