"""Names that group samples (classes, clients, categories): which are one, and which are none."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote

import numpy as np

from datamodules.record import Record

# Texts that may mark a missing value, but are read as words.
NOTHING = frozenset(
    (
        *("none", "nil", "void", "unknown", "missing", "n.a.", "n.d.", "nd", "n\\a", "k.a.", "tbd"),
        *("\\n", "not set", "no answer", "don't know", "-nan(ind", "not done", "not tested"),
        *("blank", "empty", "undefined", "unspecified", "#value!", "#ref!", "#div/0!", "#num!"),
        *("#name?", "#null!", "not available", "not applicable", "not known", "no data", "nan"),
        *("na", "n/a", "null", "nat", "not recorded", "not reported", "refused", "not stated"),
        *(
            "prefer not to say",
            "prefer not to answer",
            "declined to answer",
            "declined",
            "no reply",
        ),
        *("rather not say", "not specified", "no response", "not collected", "not measured"),
        *("unbekannt", "keine angabe", "k. a.", "n/v", "inconnu", "desconocido", "sin dato", "s/d"),
        *("onbekend", "sconosciuto", "desconhecido", "okänd", "ukendt", "nieznany", "не указано"),
        *("0000-00-00", "0000-00-00 00:00:00", "00.00.0000", "00/00/0000"),
        *("неизвестно", "不明", "未知"),
    )
)
# Signs that say nothing.
_EMPTY = frozenset("#-\u2010\u2011\u2012\u2013\u2014\u2212_./\\*?!~\u2026 ")
# Words that mean the same.
_SAME = tuple(
    frozenset(words.split())
    for words in (
        "yes y true t 1 ja oui si sí wahr vrai vero verdadero verdadeiro waar sim da да",
        "no n false f 0 nein non falsch faux falso onwaar não нет",
        "male m man männlich",
        "female f w woman weiblich",
    )
)
# Letters of other scripts that look like Latin ones, after case folding.
_LOOKS = str.maketrans(
    "аеорсухіјѕкмтвнοανρτκιημβεζυχ\u0131",
    "aeopcyxijskmtbhoavptkihmbezyxi",
)
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "å": "aa", "ø": "oe", "æ": "ae"})
_DASHES = re.compile("[\u2010-\u2015\u2212\ufe58\ufe63\uff0d]")
_QUOTES = re.compile("[\u2018\u2019\u201a\u201b\u2032\u02bc`\u00b4]")
# The encodings in which UTF-8 is misread.
_MISREAD = ("cp1252", "latin-1")
# So many single letters are an alphabet, in which case counts.
_ALPHABET = 10
# Names are compared letter by letter up to this number.
_MOST = 400
_IDENTIFIERS = 20_000
# Among more names, a word and its plural are often both meant.
_FEW = 50
# What follows the name of a copy, or of a later state.
COPY = re.compile(
    r"(?i)( \(\d+\)|[ _-]+(copy|kopie|copie|copia|kopia)( ?\(?\d+\)?)?|[ _-](new|old|neu|alt|final"
    r"|backup|bak|v\d))$"
)
_TRIED = frozenset(
    ("test", "dummy", "demo", "example", "sample", "foo", "bar", "xxx", "xx", "asdf", "probe")
)
# So many pairs are named one by one.
_PAIRS = 8


def of_names(record: Record) -> Iterator[str]:
    """Yield doubts about the names of classes, subclasses and clients."""
    uses = {"target": "class", "client": "client"}
    covered = {uses[c.use] for c in record.of("target", "client") if c.kind != "numbers"}
    for name in record.division.twice:
        yield f"two of the class names are {name!r}: number them as one, or name them apart"
    for kind, counts in record.division.names.items():
        if kind not in covered:
            yield from _doubts(f"the {kind} names have", counts, nothing=True)


def of_identifiers_in_two_ways(record: Record) -> Iterator[str]:
    """Yield identifiers that look the same, so that one is taken for two."""
    for name, values in record.identifiers.items():
        if values.dtype.kind in "OU":
            found, counts = np.unique(values.astype(str), return_counts=True)
            known = dict(zip(found.tolist(), counts.tolist(), strict=True))
            if len(known) <= _IDENTIFIERS:
                yield from _twins(f"{name!r} has", known, [*_pairs(known)][:1])


def of_columns(record: Record) -> Iterator[str]:
    """Yield doubts about the names and the words of columns in use."""
    used = {column.name: len(column.codes) for column in record.of("feature", "target", "client")}
    if record.columns and record.columns[0].texts:
        yield from _twins("there are the columns", used, [*_pairs(used)])
    for column in record.of("feature", "target", "client"):
        if column.kind in ("words", "both"):
            yield from _doubts(f"{column.name!r} has", column.present, nothing=False)


def _doubts(where: str, counts: Mapping[str, int], nothing: bool) -> Iterator[str]:
    # Letters as Python writes them, too.
    if len(counts) > _ALPHABET and all(len(name.strip("'\"").lstrip("\\")) <= 1 for name in counts):
        return
    pairs = [*_pairs(counts)]
    paired = {name for pair in pairs for name in pair}
    for name in counts:
        if (why := _odd(name)) and name not in paired:
            yield f"{where} {name!a}, which {why}"
        elif nothing and is_nothing(name) and not (name == "-" and "+" in counts):
            yield f"{where} {name!r}: leave its samples out if it says that there is none"
    yield from _twins(where, counts, pairs)
    yield from _synonyms(where, counts)
    yield from _copied(where, counts)
    yield from _placeholders(where, counts)
    if len(counts) <= _MOST:
        yield from _slips(where, counts)
    if len(counts) <= _FEW:
        yield from _plurals(where, counts)


def is_nothing(text: str) -> bool:
    """Return ``True`` if a text may stand for a missing value: it says so, or says nothing."""
    return text.casefold().strip("()<>[]{}") in NOTHING or {*text} <= _EMPTY


def _odd(name: str) -> str:
    """Return what is odd about a name by itself; empty if nothing is."""
    kinds = {unicodedata.category(letter) for letter in name}
    if "\ufffd" in name or kinds & {"Co", "Cs", "Cn"}:
        return "has letters that were lost when its text was decoded: read it again from its source"
    plain = all(one.isascii() or unicodedata.category(one) == "Cf" for one in name)
    if "Cf" in kinds and plain:
        return "has letters that are not visible: remove them"
    for encoding in _MISREAD:
        try:
            meant = name.encode(encoding).decode("utf-8")
        except UnicodeError:
            continue
        if meant != name:
            return f"is UTF-8 that was read as {encoding}: {meant!r} is meant"
    if re.search(r"&(\w{2,8}|#\d+);", name) and html.unescape(name) != name:
        return f"is written for a web page: {html.unescape(name)!r} is meant"
    meant = unquote(name, errors="replace")
    if meant != name and meant.isprintable() and "\ufffd" not in meant:
        return f"is written for a web address: {meant!r} is meant"
    if len(name) > 2 and name[0] == name[-1] and name[0] in "'\"`":
        return f"stands in quotes, which count as letters: write {name[1:-1]}"
    return ""


def skeleton(name: str) -> str:
    """Return a name as the eye reads it: without case, accents, blanks and invisible letters.

    Example:
        >>> skeleton("New\u00a0York") == skeleton("new-york\u200b")
        True
    """
    text = unicodedata.normalize("NFKD", name).casefold()
    text = _QUOTES.sub("'", _DASHES.sub("-", text)).translate(_LOOKS)
    # Marks of other scripts are letters of their own.
    text = re.sub(r"(?<=[a-z])[\u0300-\u036f]+", "", text)
    text = re.sub(r"(?<=[^\W\d])[-_](?=[^\W\d])", "", text)
    return "".join(one for one in text if unicodedata.category(one)[0] not in "CZ").strip(
        ".,;:'\"_"
    )


def _transliterated(name: str) -> str:
    """Return a name as it is written where there are no umlauts."""
    return skeleton(name.casefold().translate(_UMLAUTS))


def _same_number(name: str) -> str:
    try:
        return str(float(name)) if not name.strip("+-0123456789.") else name
    except ValueError:
        return name


def _pairs(counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield pairs of names that look the same."""
    for read in (skeleton, _transliterated, _same_number):
        seen: dict[str, str] = {}
        for name in counts:
            other = seen.setdefault(read(name), name)
            if other != name and (read is skeleton or skeleton(other) != skeleton(name)):
                yield other, name


def _twins(
    where: str, counts: Mapping[str, int], pairs: Sequence[tuple[str, str]]
) -> Iterator[str]:
    """Yield lines on names that look the same, and count as different."""
    for other, name in pairs[:_PAIRS]:
        # What differs must be seen in the message.
        hidden = _shown(other) == _shown(name) or not (other + name).isprintable()
        first, second = (ascii(one) if hidden else repr(one) for one in (other, name))
        yield (
            f"{where} {first} and {second} ({counts[other]} and {counts[name]} samples), which "
            "count as different: write them alike if they are the same"
        )
    if len(pairs) > _PAIRS:
        yield f"{where} {len(pairs) - _PAIRS} more pairs of names that look the same"


def _shown(name: str) -> str:
    return name.casefold().translate(_LOOKS)


def _synonyms(where: str, counts: Mapping[str, int]) -> Iterator[str]:
    if len(counts) > 12:
        return
    folded = {name.casefold(): name for name in counts}
    for words in _SAME:
        if len(both := [name for word, name in folded.items() if word in words]) > 1:
            # The letter f is both false and female.
            if {one.casefold() for one in both} <= {"f", "no", "n"} and "m" in folded:
                continue
            shown = " and ".join(map(repr, both))
            yield f"{where} {shown}, which may mean the same: write them alike"


def _copied(where: str, counts: Mapping[str, int]) -> Iterator[str]:
    """Yield names that another has, with what a copy or a later state is called."""
    for name in counts:
        if (first := COPY.sub("", name)) != name and first in counts:
            yield (
                f"{where} {first!r} and {name!r} ({counts[first]} and {counts[name]} samples), "
                "as if one were copied or a later state: write them alike if they are the same"
            )


def _placeholders(where: str, counts: Mapping[str, int]) -> Iterator[str]:
    """Yield rare names that are written where something is tried out."""
    for name, count in counts.items():
        others = [number for other, number in counts.items() if other != name]
        if name.casefold() in _TRIED and len(others) > 1 and 2 * count < np.median(others):
            yield (
                f"{where} {name!r} in {count} samples, which may be no record but a trial: leave "
                "them out"
            )


def _slips(where: str, counts: Mapping[str, int]) -> Iterator[str]:
    """Yield rare names that are a letter off a frequent one."""
    frequent = [name for name, count in counts.items() if count >= 20 and len(name) >= 3]
    near = {form: name for name in frequent for form in _off_by_one(name)}
    for name, count in counts.items():
        other = next((near[form] for form in _off_by_one(name) if form in near), name)
        digits = [re.sub(r"\D", "", one) for one in (name, other)]
        alike = skeleton(name) == skeleton(other) or digits[0] != digits[1]
        if other != name and len(name) >= 4 and not alike and 20 * count <= counts[other]:
            yield (
                f"{where} {name!r} in {count} samples, a letter away from {other!r} "
                f"({counts[other]}): write them alike if it is a slip"
            )


def _plurals(where: str, counts: Mapping[str, int]) -> Iterator[str]:
    """Yield names of which one is the plural of another."""
    for name in counts:
        several = name + ("S" if name.isupper() else "s")
        if len(name) >= 3 and name.isalpha() and several in counts:
            yield (
                f"{where} {name!r} and {several!r} ({counts[name]} and {counts[several]} samples): "
                "write them alike if they are the same"
            )


def _off_by_one(name: str) -> set[str]:
    """Return a name and its forms without one letter; those of two names meet if one is off."""
    return {name, *(name[:i] + "\0" + name[i + 1 :] for i in range(len(name)))} | {
        name[:i] + name[i + 1 :] for i in range(len(name))
    }


def listed(names: list[str], most: int = 3) -> str:
    """Return some names as text, with the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
