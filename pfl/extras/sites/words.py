"""What a server is told in words: nothing of the owner's folders."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

# An absolute path, of Windows too: what stands before its last part.
_PART = r"[^\s\\/'\"`,;:()\[\]{}<>|]+"
_FOLDERS = re.compile(rf"(?:(?<![\w.~:/\\-])~?|\b[A-Za-z]:)(?:[\\/]+{_PART})*[\\/]+(?={_PART})")


def without_folders(text: str, known: Iterable[Path] = ()) -> str:
    """Return a text in which absolute paths are shortened to their last part.

    Args:
        text: The text.
        known: Files and folders of the owner, whose paths may have spaces.
    """
    here = [Path.cwd(), Path.home(), Path(tempfile.gettempdir()), *map(Path, sys.path)]
    places = {place for one in (*known, *here) for place in (one, one.resolve(), one.parent)}
    for place in sorted(map(str, places), key=len, reverse=True):
        if len(place) > 1 and Path(place).is_absolute():
            text = text.replace(f"{place}/", "").replace(place, Path(place).name)
    return _FOLDERS.sub("", text)
