"""A method's plans, which are declared once without access to values.

Values that differ between clients are functions in the plan, called for each client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from pfl.core.client import ClientModule
from pfl.core.data import FederatedData
from pfl.core.failure import ExplainedError, during
from pfl.core.foreign import check_only_network
from pfl.core.state import call_with, matches
from pfl.core.types import Pass, Phase, Plan, State

# Functions that turn a tensor into plain numbers; every other one fails on the meta device.
_READS = frozenset(
    getattr(Tensor, name)
    for name in (
        *("item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__"),
        *("__index__", "__complex__", "__contains__"),
    )
)


class MethodError(ExplainedError, TypeError):
    """A method breaks a promise on which every engine relies."""


class _Unread(Tensor):
    """An entry of a module without its value; reading the value raises an error."""

    question: str = ""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Compute without values, and record the entry that a result comes from."""
        asked = (item.question for item in tree_leaves((args, kwargs)) if isinstance(item, _Unread))
        question = next(asked, "")
        if func in _READS:
            raise MethodError(question)
        try:
            result = super().__torch_function__(  # type: ignore[no-untyped-call]
                func, types, args, dict(kwargs or {})
            )
        except (NotImplementedError, RuntimeError) as error:
            raise MethodError(question) from error
        for item in tree_leaves(result):
            if isinstance(item, _Unread):
                item.question = question
        return result


def declared(module: ClientModule, verb: str) -> Plan:
    """Return the plan that ``module.plan()``, or another verb of the module, declares.

    Raises:
        MethodError: The method reads the value of an entry, returns something other than phases and
            passes, uses a name twice, or draws noise without declaring it.
    """
    method = type(module).__name__
    entries = {
        name: _unread(
            value,
            f"{method}.{verb}() reads the value of the entry {name!r}: a plan is the same for "
            "every client and has no access to values; where clients differ, use a function of "
            "(entries, info) as epochs or steps of a phase, as when of a pass, or as subset",
        )
        for name, value in _once(module.state_dict(keep_vars=True)).items()
    }
    with during(f"{method}.{verb}()"):
        plan: Plan = tuple(call_with(module, entries, getattr(module, verb)))
    names = set[str]()
    for part in plan:
        if not isinstance(part, Phase | Pass):
            raise MethodError(
                f"{method}.{verb}() returns {part!r}; a plan consists of Phase and Pass objects"
            )
        if part.name in names:
            raise MethodError(f"{method}.{verb}() has two parts named {part.name!r}")
        if isinstance(part, Phase) and part.noise and not module.noise_generator(module.hparams):
            raise MethodError(
                f"{method}.{verb}() declares noise in the phase {part.name!r}: set draws_noise = "
                f"True in {method}, so that the generator is recorded"
            )
        names.add(part.name)
    return plan


def _once(entries: State) -> State:
    """Return the entries without duplicates; the first name of a shared entry is kept."""
    first = {id(value): name for name, value in reversed(entries.items())}
    return {name: value for name, value in entries.items() if first[id(value)] == name}


def _unread(value: Tensor, question: str) -> Tensor:
    empty = torch.empty_like(value, device="meta", requires_grad=value.requires_grad)
    unread = empty.as_subclass(_Unread)
    unread.question = question
    return unread


def check_fits(module: ClientModule, data: FederatedData) -> None:
    """Refuse a method that no engine can run, or that does not suit the data's task.

    Raises:
        MethodError: It overrides ``training_step``, needs classes that the task does not have, or
            was built for another task.
        TypeError: One of its networks has a training of its own.
    """
    method = type(module)
    if method.training_step is not ClientModule.training_step:
        raise MethodError(
            f"{method.__name__} overrides training_step, which a federation does not call: "
            "return the loss from losses(batch), as terms by name ({'ce': ...}) whose sum is "
            "minimised; several objectives are phases of plan(); self.log works in both"
        )
    for name, part in module.named_children():
        check_only_network(part, name, method.__name__)
    if module.needs_classes and not data.task.has_classes:
        raise MethodError(
            f"{method.__name__} needs samples with classes, but the task of the data is "
            f"{type(data.task).__name__}"
        )
    if module.task != data.task:
        raise MethodError(
            f"{method.__name__} was built for the task {module.task}, but the task of the data "
            f"is {data.task}: pass task={data.task} to the method"
        )


def check_trains(module: ClientModule, part: Phase | Pass, trainable: Set[str]) -> None:
    """Refuse a phase of which all parameters are frozen or missing, unless it has no steps.

    Args:
        module: The method.
        part: A part of one of its plans.
        trainable: Names of the parameters that the user has not frozen.

    Raises:
        MethodError: The phase has nothing to train.
    """
    if isinstance(part, Pass) or (part.epochs if part.steps is None else part.steps) == 0:
        return
    has_any = any(True for _ in module.parameters())
    if has_any and not any(matches(name, part.trains) for name in trainable):
        raise MethodError(
            f"{type(module).__name__} has nothing to train in {part.label}: no parameter "
            f"matches {', '.join(part.trains)}, or all that do are frozen. Leave more of the "
            "network free; a method or an option that splits it needs a "
            "lightning_modules.nets.SplitNet"
        )
