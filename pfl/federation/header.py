"""The header of a run: the decisions made for it, one line for each topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lightning.fabric import Fabric

from pfl.core.client import Client
from pfl.core.types import FederatedData
from pfl.engines import cores
from pfl.federation.evaluation import Evaluator
from pfl.federation.run import Run


def describe(run: Run, evaluator: Evaluator, fabric: Fabric, engine: str) -> dict[str, str]:
    """Return the header's lines by topic.

    Args:
        run: The run before its first round.
        evaluator: Runs the tests.
        fabric: Device and precision.
        engine: The line that describes the engine.
    """
    module, data = run.module, run.data
    training = sum(info.samples > 0 for info in evaluator.clients)
    local = module.buffer_policy == "local" and not evaluator.has_global_model
    sizes = evaluator.group_sizes()
    return {
        "method": type(module).__name__,
        "network": _network(module),
        "data": _data(data),
        "clients": f"{data.num_clients}, of which {training} hold training data",
        "device": _device(fabric),
        "buffers": "local, so no global model is tested" if local else module.buffer_policy,
        "evaluated": ", ".join(evaluator.points),
        "engine": engine,
        **({"groups": sizes} if sizes else {}),
    }


def slow_tests(
    evaluator: Evaluator, tested: Sequence[int], every: int, samples: Sequence[int]
) -> dict[str, str]:
    """Return a warning line if tests will take longer than training, judging by the first round.

    Args:
        evaluator: Runs the tests.
        tested: The clients that are tested.
        every: Rounds from one test to the next.
        samples: Number of samples that each participant of the round trains on, with repetition.
    """
    # The backward pass of a step takes twice as long as the forward pass.
    ratio = evaluator.cost(tested) / every / max(1, 3 * sum(samples))
    if ratio <= 1:
        return {}
    return {
        "tests": (
            f"will take about {ratio:.2g} times as long as training: {len(tested):,} clients "
            f"are tested, but {len(samples):,} train in a round; reduce this with "
            "loop.evaluate_clients or loop.evaluate_every"
        )
    }


def _device(fabric: Fabric) -> str:
    """Describe device and precision, with a hint if another precision is faster."""
    precision = fabric.strategy.precision.precision
    line = f"{fabric.device}, {precision}"
    if fabric.device.type == "cpu" and precision == "32-true" and cores.has_bf16():
        line += " (this processor has units for bf16-mixed, 1.3 times as fast on small CNNs)"
    return line


def _network(module: Client) -> str:
    """Describe a network: its class and its number of parameters."""
    count = sum(parameter.numel() for parameter in module.net.parameters())
    return f"{type(module.net).__name__}, {count:,} parameters"


def _data(data: FederatedData) -> str:
    """Describe data: their class and their partition."""
    name, recipe = type(data).__name__, data.description().get("partition")
    if not isinstance(recipe, Mapping):
        return name
    options = ", ".join(f"{key}={value}" for key, value in recipe["init_args"].items())
    return f"{name}, {recipe['class_path'].rpartition('.')[2]}({options})"
