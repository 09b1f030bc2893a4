"""The steps of a run's uplink once they are bound: who acts where, and what others may not touch.

What a step is follows from what it does: from its methods as they are found on the step itself,
from the client's steps that it adds to a job, and from what it changes. A stranger's step may wrap
or imitate another one; what it was declared as counts for nothing.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, TypeAlias, cast

import torch

from pfl.core.server import ServerState
from pfl.core.state import digest, message_size
from pfl.core.types import Broadcast, ClientInfo, ClientStep, Job, Result, State, Upload
from pfl.training.gradients import GradientRule
from pfl.training.uplink import Guarantee, Start, UplinkStep, encodes, same_upload, taken

Merge: TypeAlias = Callable[[ServerState, list[Upload]], ServerState]


class Chain:
    """The bound steps of a run, in order.

    One of them may give a guarantee (:class:`pfl.training.uplink.Guarantee`). Nobody else then
    merges uploads; a step that is neither it nor a codec changes nothing that was released, and
    adds to a job only what the client is to do.

    Attributes:
        steps: The bound steps.
        guarantee: The step that gives a guarantee, if there is one.
        covers: Whether a step guarantees what the server makes of all uploads.
        secret: Whether a step draws what nobody may know, so that cohorts are not known either.
        merging: The names of steps that merge uploads, for which all are held.

    Args:
        steps: The bound steps.
        names: Their names as the run declares them, as bound steps may have others.

    Raises:
        ValueError: Two steps give a guarantee, or another one than that which does merges uploads.
    """

    def __init__(self, steps: Sequence[UplinkStep] = (), names: Sequence[str] = ()) -> None:
        self.steps, self._names = (*steps,), (*names,)
        self._own = self._guaranteeing()
        self.guarantee = None if self._own is None else cast(Guarantee, steps[self._own])
        self.covers = self.guarantee is not None and self.guarantee.covers == "server"
        self.secret = any(step.secret for step in steps)
        # Found once, so that no step can change its mind on where it acts.
        verbs = ("merge", "received", "broadcast")
        self._merges, self._receives, self._broadcasts = map(self._acting, verbs)
        self._jobs = [*map(_giving, steps)]
        # The step that encodes what clients send, once it has added the encoding to a job.
        self._encoder: int | None = None
        self.merging = [self._names[at] for at, _ in self._merges]
        self._check_merges()

    def _guaranteeing(self) -> int | None:
        """Return the place of the step that gives a guarantee; ``None`` if there is none."""
        # By its type, as a stranger's object may have any ``__class__``.
        own = [at for at, step in enumerate(self.steps) if issubclass(type(step), Guarantee)]
        if len(own) > 1:
            one, other = (self._names[at] for at in own[:2])
            raise ValueError(
                f"loop.uplink: {one} and {other} both guarantee what a run releases: a run has it "
                "once, as neither counts what the other adds"
            )
        return own[0] if own else None

    def _acting(self, verb: str) -> list[tuple[int, Callable[..., Any]]]:
        """Return the steps that do something in a place: where they stand, and what they do."""
        return [(at, getattr(step, verb)) for at, step in enumerate(self.steps) if acts(step, verb)]

    def _check_merges(self) -> None:
        """Refuse a step that merges uploads beside one that gives a guarantee."""
        others = [at for at, _ in self._merges if self._own not in (None, at)]
        if self._own is not None and others:
            raise ValueError(
                f"{self._names[self._own]}: {self._names[others[0]]} also merges uploads, which no "
                "account counts"
            )

    def bound(self, step: UplinkStep, start: Start) -> Chain:
        """Return the chain with one more step, bound to the run.

        Raises:
            ValueError: The step does not suit the run or the others, is no step once it is bound,
                or changes the run.
        """
        name, known = type(step).__name__, len(start.guarantees)
        with _untouched(name, start.context, start.server, start.context.module):
            made = step.bound(start)
        for own in start.guarantees[known:]:
            if own is not made:
                raise ValueError(
                    f"loop.uplink: {name} holds a {type(own).__name__} instead of becoming it: "
                    "what guarantees something must be a step of loop.uplink itself"
                )
        if not isinstance(made, UplinkStep):
            raise ValueError(
                f"loop.uplink: {name}.bound() returns {type(made).__name__}, not a step"
            )
        return Chain((*self.steps, made), (*self._names, name))

    def check_last(self, declared: Sequence[UplinkStep]) -> None:
        """Refuse steps after one that must be the last, as they are declared and as bound.

        Raises:
            ValueError: There are some.
        """
        for steps in (declared, self.steps):
            for step, (one, after) in zip(steps, itertools.pairwise(declared), strict=False):
                if step.last:
                    name, other = type(one).__name__, type(after).__name__
                    raise ValueError(f"loop.uplink: {name} must come last; name it after {other}")

    def examine(
        self, start: Start, made: Callable[[], Job], merged: Callable[[], ServerState]
    ) -> None:
        """Refuse steps that do not suit each other, and try what one of them guarantees.

        Args:
            start: The facts of the run.
            made: Returns a client's job as all of them make it.
            merged: Returns the server's state after a round without uploads.

        Raises:
            ValueError: Some do not, or the trial does not show what is guaranteed.
        """
        guarantee = self.guarantee
        if guarantee is not None:
            guarantee.accepted(start)
        job = made()
        for step in self.steps:
            step.check_chain(self.steps, job)
        if guarantee is not None:
            guarantee.tried(start, job, merged)

    # What the server learns, and what a run shows and prints. The guarantee has the last word.

    @property
    def _last_word(self) -> list[int]:
        """The places of the steps, with the guarantee as the last one."""
        return sorted(range(len(self.steps)), key=lambda at: at == self._own)

    def disclosed(self, info: ClientInfo) -> ClientInfo:
        """Return the information that the server may have on a client."""
        for at in self._last_word:
            info = self.steps[at].disclosed(info)
        return info

    def shown(self, result: Result) -> Result:
        """Return a client's result as shown to callbacks.

        Raises:
            ValueError: A step writes into it.
        """
        for at in self._last_word:
            with self._intact(at, *_parts(result.upload)):
                result = self.steps[at].shown(result)
        return result

    def max_rounds(self, rounds: int) -> int:
        """Return how many of the planned rounds may run."""
        return min([rounds, *(step.max_rounds(rounds) for step in self.steps)])

    def described(
        self, history: Sequence[Mapping[str, float]], planned: int, rounds: int
    ) -> dict[str, str]:
        """Return lines for the run's header, by topic.

        Args:
            history: The rounds that were played.
            planned: The planned number of rounds.
            rounds: How many of them will run.

        Raises:
            ValueError: Two steps describe the same topic, or a round lacks what is guaranteed.
        """
        lines, whose = dict[str, str](), dict[str, str]()
        for name, step in zip(self._names, self.steps, strict=True):
            told = step.described(planned, rounds)
            if self.guarantee is not None and step is self.guarantee:
                told = self.guarantee.stated(history, planned, rounds) | told
            for topic in told:
                if topic in whose:
                    raise ValueError(
                        f"loop.uplink: {whose[topic]} and {name} both describe {topic!r} in the "
                        "run's header: leave one of them out"
                    )
                whose[topic] = name
            lines |= told
        return lines

    # The way of a round, from the server to a client and back.

    def broadcast(self, message: Broadcast, number: int) -> Broadcast:
        """Return a message from the server as clients receive it in a round, from 1.

        Raises:
            ValueError: Two steps encode it, or a step changes what was released.
        """
        own, encoder = self.guarantee, None
        for at, act in self._broadcasts:
            before, name = message, self._names[at]
            with self._intact(at, message.shared, message.extra):
                message = act(message, number)
            if message.codec is not before.codec:
                if encoder is not None:
                    raise ValueError(_twice(encoder, name))
                encoder = name
            elif own is not None and own.covers == "server" and at != self._own:
                parts = (before.shared, message.shared), (before.extra, message.extra)
                if not all(itertools.starmap(_same, parts)):
                    raise ValueError(
                        f"loop.uplink: {name}.broadcast() changes what clients receive, and "
                        "nobody accounts for the data that it is from: only a codec may"
                    )
        return message

    def job(self, job: Job, state: ServerState, uploads: bool) -> Job:
        """Return a job for training with the steps that the client is to take.

        Raises:
            ValueError: A step takes away what another gives the client to do, or changes the job of
                a run that guarantees something; or two steps replace how it takes its gradients, or
                encode what it sends.
        """
        if (own := self.guarantee) is not None:
            job = replace(job, info=own.training_info(job.info))
        rules, encoders = list[str](), list[str]()
        for at, act in enumerate(self._jobs):
            before, name = job, self._names[at]
            with self._intact(at, state.shared, job.broadcast.shared if job.broadcast else {}):
                job = act(job, state, uploads)
            added = self._added(name, before, job)
            rules += [name for one in added if isinstance(one, GradientRule)]
            if any(map(encodes, added)):
                encoders.append(name)
                self._encoder = at
        if len(rules) > 1:
            raise ValueError(
                f"loop.uplink: {' and '.join(rules)} replace how a client takes its gradients, but "
                "only one of them can: leave the others out"
            )
        if len(encoders) > 1:
            raise ValueError(_twice(*encoders[:2]))
        if encoders and not encodes(job.steps[-1]):
            raise ValueError(
                f"loop.uplink: {encoders[0]} encodes what clients send, and must come last"
            )
        return job

    def _added(self, name: str, before: Job, after: Job) -> Sequence[ClientStep]:
        """Return the client's steps that a step has added to a job.

        Raises:
            ValueError: It has done something else to it.
        """
        for place, own in enumerate(before.steps):
            if place >= len(after.steps) or after.steps[place] is not own:
                raise ValueError(
                    f"loop.uplink: {name}.job() takes {type(own).__name__} away from the client's "
                    "steps: it may only add its own after those of others"
                )
        added = after.steps[len(before.steps) :]
        for one in added:
            if not isinstance(one, ClientStep):
                raise ValueError(
                    f"loop.uplink: {name}.job() gives the client a {type(one).__name__} to do, "
                    "which is no ClientStep"
                )
        if self._own is not None:
            for item in fields(before):
                if item.name != "steps" and (
                    getattr(after, item.name) is not getattr(before, item.name)
                ):
                    raise ValueError(
                        f"loop.uplink: {name}.job() changes {item.name!r} of a client's job, but "
                        f"beside {self._names[self._own]} it may only add steps"
                    )
        return added

    def received(self, job: Job, result: Result) -> Result:
        """Return a client's result as the server uses it, on arrival.

        Raises:
            ValueError: A step changes an upload that is not to be changed.
        """
        for at, act in reversed(self._receives):
            before = result
            with self._intact(at, *_parts(before.upload)):
                result = taken(self._names[at], before, act(job, before))
            if before.upload is not None and result.upload is None:
                result = replace(result, unheard=message_size(before.upload))
            if self._own not in (None, at) and at != self._encoder:
                same_upload(self._names[at], "received", before, result)
        return result

    def merge(self, state: ServerState, uploads: list[Upload], aggregate: Merge) -> ServerState:
        """Return the server's state after a round; ``aggregate`` is the server's own merge."""
        for _, act in reversed(self._merges):
            aggregate = _around(act, aggregate)
        return aggregate(state, uploads)

    @property
    def repeats(self) -> bool:
        """Whether uploads may be aggregated once more without some of them.

        They may not if a step guarantees what the server makes of them, or draws secret noise:
        whose upload an outcome lacks, and one that is thrown away, would tell of a client what is
        not accounted for.
        """
        return not self.covers and not self.secret

    def stream(self) -> torch.Generator:
        """Return a stream of the system's draws, for the cohorts of a run with secret draws."""
        return torch.Generator().manual_seed(secrets.randbits(63))

    @contextmanager
    def _intact(self, at: int, *states: State) -> Iterator[None]:
        """Refuse a stranger that writes into tensors which it was given.

        Raises:
            ValueError: It does.
        """
        if self._own in (None, at):
            yield
            return
        before = [*map(digest, states)]
        yield
        if before != [*map(digest, states)]:
            raise ValueError(
                f"loop.uplink: {self._names[at]} writes into tensors that it is given, beside "
                f"{self._names[self._own or 0]}: it must return new ones"
            )


def acts(step: UplinkStep, verb: str) -> bool:
    """Return ``True`` if a step does something in a place, by what is called there."""
    return getattr(getattr(step, verb), "__func__", None) is not getattr(UplinkStep, verb)


def _giving(step: UplinkStep) -> Callable[[Job, ServerState, bool], Job]:
    """Return what gives a client a step's part: by default, a rule of gradients travels itself."""
    if acts(step, "job") or not isinstance(step, GradientRule):
        return step.job
    return lambda job, state, uploads: replace(job, steps=(*job.steps, step))


def _around(act: Callable[..., ServerState], inner: Merge) -> Merge:
    return lambda state, uploads: act(state, uploads, inner)


def _twice(one: str, other: str) -> str:
    return (
        f"loop.uplink: {one} and {other} both encode messages, of which only one can: leave one of "
        "them out"
    )


def _same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(other[name] is one[name] for name in one)


def _parts(upload: Upload | None) -> tuple[State, ...]:
    return () if upload is None else (upload.shared, upload.extra)


@contextmanager
def _untouched(name: str, *things: object) -> Iterator[None]:
    """Refuse a step that changes attributes of the run while it is bound.

    Raises:
        ValueError: It does.
    """
    before = [dict(vars(one)) for one in things]
    yield
    for one, then in zip(things, before, strict=True):
        now = vars(one)
        changed = [key for key in {**then, **now} if now.get(key) is not then.get(key)]
        if changed:
            raise ValueError(
                f"loop.uplink: {name}.bound() sets {changed[0]!r} of the run's "
                f"{type(one).__name__}: a step may only return another one"
            )
