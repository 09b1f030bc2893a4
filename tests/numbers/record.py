"""Record the numbers of every method on a toy federation, and compare them with a recorded list.

``python -m tests.numbers.record --write FILE`` records, ``--add`` adds new methods to the committed
list, ``--check FILE`` names what differs. All are portable runs (see
:mod:`pfl.verification.portable`), so the committed list, ``numbers.json``, holds on every x86-64
processor under Linux, for the versions that it names.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pfl.core.state import named
from pfl.federation.run import Run
from pfl.federation.sampling import UniformSampler
from pfl.loop import FederatedLoop
from pfl.testing.compare import distance
from pfl.verification import portable
from tests.engines.agreement import SIZES, module_of
from tests.helpers.discovery import facts, methods
from tests.helpers.toy import blobs, mlp, normed

LIST = Path(__file__).with_name("numbers.json")
NETS: dict[str, Callable[[], torch.nn.Module]] = {"plain": mlp, "batch_norm": normed}


def cases() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Return name and builder of every method, network and variant."""
    for method in methods():
        for net, build in NETS.items():
            for options in [{}, *facts(method).variants]:
                text = ",".join(f"{key}={value}" for key, value in options.items())
                yield (
                    f"{method.__name__}({text})/{net}",
                    lambda m=method, b=build, o=options: module_of(m, b, **o),
                )


def run(module: Any, precision: str, engine: str) -> Run:
    """Run three rounds of three out of five unequal clients."""
    loop = FederatedLoop(
        rounds=3,
        sampler=UniformSampler(0.6),
        engine=engine,  # type: ignore[arg-type]
        precision=precision,  # type: ignore[arg-type]
        evaluate_at=["post_broadcast", "post_local"],
        accelerator="cpu",
        progress=False,
    )
    return loop.fit(module, blobs(SIZES))


def values(found: Run) -> dict[str, list[Tensor]]:
    """Name every number of a run: server, kept entries by client, metrics by round."""
    named: dict[str, list[Tensor]] = {}
    for name, value in found.server.shared.items():
        named[f"server/{name}"] = [value]
    for client in sorted(found.kept):
        for name, value in found.kept[client].items():
            named.setdefault(f"kept/{name}", []).append(value)
    for row in found.history:
        for name, number in row.items():
            if not name.startswith("time/"):
                group = f"metric/{name.rpartition('/')[0]}"
                named.setdefault(group, []).append(torch.tensor(number, dtype=torch.float64))
    return named


def digest(tensors: list[Tensor]) -> str:
    """Hash shapes, types and bits."""
    found = hashlib.blake2b(digest_size=4)
    for value in tensors:
        plain = value.detach().cpu().contiguous()
        found.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
        found.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def record(engine: str, only: str = "", but: Collection[str] = ()) -> dict[str, dict[str, str]]:
    """Hash all cases in both precisions, except those that are known."""
    found = {}
    for name, build in cases():
        if only not in name or f"{name}/64-true" in but:
            continue
        for precision in ("32-true", "64-true"):
            numbers = values(run(build(), precision, engine))
            found[f"{name}/{precision}"] = {key: digest(value) for key, value in numbers.items()}
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def environment() -> dict[str, str]:
    """Describe what the bits depend on besides the code."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
    model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "cpu": f"{model or platform.processor()}, {torch.backends.cpu.get_cpu_capability()}",
        "torch": torch.__version__,
        "commit": commit.stdout.strip(),
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return one line for each case and each name in it that came, went or changed."""
    lines = []
    for case in sorted(old.keys() | new.keys()):
        if case not in new or case not in old:
            lines.append(f"{case}: {'gone' if case not in new else 'new'}")
            continue
        for name in sorted(old[case].keys() | new[case].keys()):
            before, after = old[case].get(name), new[case].get(name)
            if before != after:
                word = "gone" if after is None else "new" if before is None else "CHANGED"
                lines.append(f"{case}: {name}: {word}")
    return lines


def stacked_distance(only: str = "") -> list[str]:
    """Measure how far ``vectorised`` is from ``sequential`` in float64; the largest first."""
    found = []
    for name, build in cases():
        if only not in name:
            continue
        alone, stacked = (
            named(values(run(build(), "64-true", engine)))
            for engine in ("sequential", "vectorised")
        )
        apart, where = distance(alone, stacked)
        found.append((apart, f"{apart:.1e} {name} {where}"))
    return [line for _, line in sorted(found, reverse=True)]


def _lines(content: Mapping[str, Any]) -> str:
    """Write JSON with one line a case."""
    rows = [f"  {json.dumps(case)}: {json.dumps(row)}" for case, row in content["numbers"].items()]
    head = json.dumps(content["environment"])
    return f'{{"environment": {head},\n "numbers": {{\n' + ",\n".join(rows) + "\n}}\n"


def main() -> int:
    """Write a list, or check against one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--add", action="store_true", help="record new cases")
    parser.add_argument("--check", type=Path, nargs="?", const=LIST)
    parser.add_argument("--engine", default="sequential")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--stacked", action="store_true", help="vectorised beside sequential")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if given.stacked:
        print("\n".join(stacked_distance(given.only)))
        return 0
    if given.add:
        content = json.loads(LIST.read_text())
        content["numbers"] |= record(given.engine, given.only, content["numbers"])
        LIST.write_text(_lines(content))
        return 0
    found = record(given.engine, given.only)
    if given.write:
        content = {"environment": environment(), "numbers": found}
        given.write.write_text(_lines(content))
        return 0
    content = json.loads((given.check or LIST).read_text())
    here = environment()
    for key in ("cpu", "torch"):
        if content["environment"][key] != here[key]:
            print(f"another {key}: {content['environment'][key]}, here {here[key]}")
    old = {case: names for case, names in content["numbers"].items() if given.only in case}
    lines = differences(old, found)
    print("\n".join(lines) or f"all {sum(map(len, old.values()))} numbers are the recorded ones")
    return bool(lines)


if __name__ == "__main__":
    portable.enter()
    sys.exit(main())
