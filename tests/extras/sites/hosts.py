"""Two owners' hosts in one process, and runs over them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Lock

import yaml
from torch import nn

from pfl.cli.config import Experiment
from pfl.extras.sites import command as verb
from pfl.extras.sites.engine import RemoteEngine
from pfl.extras.sites.host import Host
from pfl.extras.sites.site import Allowed

RUN = {
    "seed": 7,
    "loop": {"rounds": 2, "default_root_dir": None, "progress": False, "engine": "sequential"},
    "model": {
        "class_path": "FedPer",
        "init_args": {"net": {"class_path": "MLP", "init_args": {"hidden": 4}}},
    },
    "data": {
        "class_path": "Digits",
        "init_args": {
            "num_clients": 2,
            "partition": {"class_path": "Dirichlet", "init_args": {"alpha": 0.5}},
            "max_samples": 200,
            "batch_size": 16,
        },
    },
}
PARSING = Lock()
OWNER = {"client": 0, "folder": "site0", "superlink": "127.0.0.1:1", "methods": ["FedPer"]}


class Looks(nn.Module):
    """A table of ten rows, one of which the first feature chooses: a sample may have none."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(10, 6)

    def forward(self, x):
        return self.rows(x[:, 0].abs().long())


def owner(**changed):
    """Write an owner's file, whose data have a batch size of their own, and return it parsed."""
    own = {**RUN["data"]["init_args"]}
    del own["batch_size"]
    content = {**OWNER, "data": {"class_path": "Digits", "init_args": own}, **changed}
    Path("my_site.yaml").write_text(yaml.safe_dump(content))
    return Experiment.parse("site", ["--config", "my_site.yaml"])


def host(client=0, build=None, allowed=None, **changed):
    told = []
    shop = workshop(client=client, **changed)

    def alone(run):
        # A parser changes the working folder while it reads a file.
        with PARSING:
            return (build or shop.build)(run)

    found = Host(
        client,
        client,
        Path(f"site{client}/kept").resolve(),
        allowed or Allowed(("FedPer", "FedAvg", "FedAS")),
        alone,
        told.append,
        shop.export,
        shop.accept,
        shop.private,
    )
    return found, told


def workshop(client=0, **changed):
    folder = Path(f"site{client}").resolve()
    folder.mkdir(exist_ok=True)
    return verb.MethodBuilder(owner(client=client, **changed), folder)


class Hosted(RemoteEngine):
    """Reaches hosts of this process."""

    name = "hosted"

    def __init__(self, hosts):
        super().__init__()
        self.hosts = hosts

    def open_transport(self, context):
        hosts = self.hosts

        class Here:
            def sites(self):
                return {int(one.answer({"verb": "who"}, b"")): "here" for one in hosts}

            def call(self, client, verb, content):
                return hosts[client].answer({"verb": verb}, content)

            def close(self):
                pass

        return Here()


def ran(*hosts, method="FedPer", **changed):
    """Run the run's configuration, over hosts if there are any."""
    model = {**RUN["model"], "class_path": method}
    content = {**RUN, "model": model, "loop": {**RUN["loop"], **changed}}
    Path("run.yaml").write_text(yaml.safe_dump(content))
    found = Experiment.parse("fit", ["--config", "run.yaml"])
    if hosts:
        found.loop = replace(found.loop, engine=Hosted(hosts))
    return found.loop.fit(found.module, found.data, config=found.text)
