from tests.toy import mlp
from lightning_modules.fedsimsup import FedSimSup
def make(net, **options):
    return FedSimSup(net, mlp(hidden=2, seed=7), **options)
def floats(module):
    inter = sum(p.numel() for p in module.net.parameters())
    return inter, inter
