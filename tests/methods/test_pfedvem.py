from lightning_modules.pfedvem import PFedVEM
make = PFedVEM
def floats(module):
    base = sum(p.numel() for p in module.net.backbone.parameters())
    head = sum(p.numel() for p in module.net.head.parameters())//2
    return base+head, base+head+1
