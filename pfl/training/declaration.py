"""What a method declares: its plans, which are made once without access to values, and uploads.

What differs between clients is a function in the plan, which the engine calls for each client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from pfl.core.client import ClientModule
from pfl.core.failure import ExplainedError, during
from pfl.core.state import call_with, form_of
from pfl.core.types import Job, Pass, Phase, Plan, State, Upload

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
        """Compute without values, and remember the entry that a result comes from."""
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


def declared(module: ClientModule, verb: Literal["plan", "adapt", "introduce"]) -> Plan:
    """Return what ``module.plan()``, or another such verb, declares for every client.

    Raises:
        MethodError: The method reads the value of an entry, returns something other than phases and
            passes, uses a name twice, or draws noise without saying so.
    """
    method = type(module).__name__
    entries = {
        name: _unread(
            value,
            f"{method}.{verb}() reads the value of the entry {name!r}: a plan is the same for "
            "every client and has no access to values; where clients differ, use a function of "
            "(entries, info) as epochs or steps of a phase, or as when of a pass",
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
        if isinstance(part, Phase) and part.noise and not module.draws_noise:
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


class UploadError(ValueError):
    """An upload is not what its method declares."""


def check_upload(upload: Upload, job: Job, module: ClientModule, entries: State) -> None:
    """Refuse an upload with something else than its method declares.

    What a method sends in addition (:attr:`Upload.extra`) has the shape of the module's entry of
    that name, or any if there is none. A method that puts its upload together itself may leave
    something out, and may send some rows of such an entry. The module's entries have the right
    types and shapes.

    Raises:
        UploadError: It is of another client or size, lacks an entry, has one that is not declared,
            or one of another type or shape.
    """
    # A method may send a part of an entry; then the server sends such a part as well.
    right, info = {**entries, **(job.broadcast.shared if job.broadcast else {})}, job.info
    for step in reversed(job.steps):
        try:
            upload = step.checked(upload, job, right)
        except ValueError as error:
            raise UploadError(f"upload {error}") from error
    if (upload.client, upload.samples) != (info.client, info.samples):
        raise UploadError(
            f"the upload of client {info.client} with {info.samples} samples says client "
            f"{upload.client} with {upload.samples} samples"
        )
    names, sent = module.shared_names(), {*upload.shared, *upload.extra}
    # Of a difference, what is missing is zero.
    added = () if any(step.differs for step in job.steps) else module.extra
    partial = type(module).upload is not ClientModule.upload
    if not partial and (absent := [name for name in (*names, *added) if name not in sent]):
        raise UploadError(f"upload lacks {absent[0]!r}")
    for name, value in upload.shared.items():
        if name not in names:
            raise UploadError(f"upload sends {name[:60]!r}, which 'shared' does not match")
        _check_alike(name, value, right[name])
    for name, value in upload.extra.items():
        if name not in module.extra:
            raise UploadError(f"upload sends the extra {name[:60]!r}, missing in 'extra'")
        if name in entries:
            entry = entries[name]
            if partial and value.dim() and entry.dim():
                # Some rows, such as the prototypes of the classes that the client has.
                entry = entry[: len(value)]
            _check_alike(name, value, entry)


def check_entries(shared: State, entries: State) -> None:
    """Refuse what no server sends: entries that a method does not have, or of another shape.

    A server may send a part of an entry, such as some channels.

    Raises:
        ValueError: There is such an entry.
    """
    for name, value in shared.items():
        if name not in entries:
            raise ValueError(f"the method has no entry {name[:60]!r}")
        check_part(value.shape, entries[name])


def check_part(shape: Sequence[int], whole: Tensor) -> None:
    """Refuse a shape that no part of an entry has.

    Raises:
        ValueError: It has other dimensions than the entry, or more in one of them.
    """
    if len(shape) != whole.dim() or any(
        n < 0 or n > most for n, most in zip(shape, whole.shape, strict=True)
    ):
        raise ValueError(f"a part of shape {[*shape]} of an entry of shape {[*whole.shape]}")


def _check_alike(name: str, value: Tensor, right: Tensor) -> None:
    if value.dtype != right.dtype or value.shape != right.shape:
        raise UploadError(f"upload sends {name!r} as {form_of(value)} instead of {form_of(right)}")
