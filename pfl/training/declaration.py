"""A method's plans, which are declared once without access to values.

Values that differ between clients are functions in the plan, called for each client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from pfl.core.client import ClientModule
from pfl.core.data import FederatedData
from pfl.core.failure import ExplainedError, during
from pfl.core.foreign import OwnSteps, check_needs, check_network, refuse, trains_itself
from pfl.core.state import call_with, matches
from pfl.core.types import Pass, Phase, Plan, State

Wrap: TypeAlias = Callable[[Callable[..., Any], str, str], Callable[..., Any]]
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


def wrapped(plan: Plan, wrap: Wrap) -> Plan:
    """Return a plan with all its functions wrapped, except factories of optimisers.

    ``wrap`` is given each function, the name of its attribute and its name in messages.
    """
    parts = list[Phase | Pass]()
    for part in plan:
        changes: dict[str, Any] = {}
        for name in (item.name for item in fields(part)):
            if callable(value := getattr(part, name)) and name != "optimizer":
                changes[name] = wrap(value, name, f"{name} of {part.label}")
        parts.append(replace(part, **changes))
    return parts


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

    A method without a task of its own takes that of the data.

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
        check_network(part, name, method.__name__, trains_itself(module.net))
    check_needs(method.__name__, module.needs, module.net)
    if "classes" in module.needs and not data.task.has_classes:
        refuse(method.__name__, ["classes"], f"the task {type(data.task).__name__}")
    if "sample_losses" in module.needs and not data.task.separable:
        refuse(
            method.__name__, ["sample_losses"], f"the task {data.task}, whose loss is of a batch,"
        )
    if trains_itself(module.net):
        _check_tested(module)
    elif isinstance(data.task, OwnSteps):
        raise MethodError(
            f"the data have no task: {method.__name__} trains {type(module.net).__name__}, which "
            "is only a network, on the task's loss. Give the data a task, or the method a "
            "LightningModule with its own training_step"
        )
    elif not module.has_own_task:
        module.take_task(data.task)
    elif module.task != data.task:
        raise MethodError(
            f"{method.__name__} was built for the task {module.task}, but the task of the data "
            f"is {data.task}: pass task={data.task} to the method"
        )


def _check_tested(module: ClientModule) -> None:
    """Refuse a method that tests other outputs than its network's own steps would.

    Raises:
        MethodError: It overrides ``forward`` and does not name the network that is tested.
    """
    method, net = type(module), type(module.net).__name__
    if method.forward is not ClientModule.forward and method.tested_net is ClientModule.tested_net:
        raise MethodError(
            f"{method.__name__} tests outputs that it computes itself, but those of {net} are its "
            'own steps\': declare needs = ("outputs",), or return the tested network as tested_net'
        )


def check_lasts(module: ClientModule, plan: Plan, trainable: Set[str]) -> None:
    """Refuse a method that trains parameters which neither travel nor stay.

    Args:
        module: The method, whose network trains itself.
        plan: Its plan for training.
        trainable: Names of the parameters that the user has not frozen.

    Raises:
        MethodError: There is such a parameter.
    """
    lasting = {*module.shared_names(), *module.kept_names()}
    phases = [part for part in plan if isinstance(part, Phase)]
    for name in sorted(name for name in trainable - lasting if name.startswith("net.")):
        if any(matches(name, phase.trains) for phase in phases):
            own = name.removeprefix("net.")
            raise MethodError(
                f"{type(module).__name__} trains {own!r} of {type(module.net).__name__}, but "
                f"neither sends nor keeps it, so that it would begin anew in each round: let it "
                f"stay with stays=[{own!r}], or choose another method"
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
            "network free, or name its parts as they are called here"
        )
