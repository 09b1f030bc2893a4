"""The part of a step of the uplink that a client does."""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias

from pydantic import Field

from pfl.core.types import ClientInfo, Job, Result, State, Upload
from pfl.disk.form import STRICT

Names: TypeAlias = Annotated[tuple[str, ...], Field(max_length=2**16)]
"""Names of entries that travel in a step; a message has no more tensors."""


class ClientStep:
    """The part of a step of the uplink that a client does: a value that travels with its job.

    A subclass is a frozen dataclass of plain values. Whoever receives it checks their types and
    ranges, as its annotations and its ``__post_init__`` say, before anything is done with it.

    Attributes:
        differs: Whether it sends the difference to what the client received, in float64, instead
            of new values.
    """

    differs: ClassVar[bool] = False
    # Without its type, which jsonargparse could not evaluate for the fields of subclasses.
    __pydantic_config__ = STRICT

    @property
    def secret(self) -> bool:
        """Whether random choices come from the operating system, and never from a seed."""
        return False

    def training_info(self, info: ClientInfo) -> ClientInfo:
        """Return what a client's training may use of its own numbers."""
        return info

    def sent(self, job: Job, result: Result) -> Result:
        """Return a client's result as it is sent, right after its round."""
        return result

    def checked(self, upload: Upload, job: Job, right: State) -> Upload:
        """Return an upload with the types and shapes that it had before this step.

        Called for uploads from other places. The values of tensors do not matter.

        Args:
            upload: The upload, in the form in which this step sends it.
            job: The client's job.
            right: Has tensors of the types and shapes of the method's entries.

        Raises:
            ValueError: This step sends nothing of this form.
        """
        return upload

    def unpacked(self, payload: State, template: State) -> State:
        """Return the weights of a message from the server; see :attr:`Broadcast.codec`.

        Raises:
            ValueError: The payload does not fit the template, or this step encodes no messages.
        """
        raise ValueError(f"{type(self).__name__} encodes no message")
