"""Takes from the snippets what a script needs, and puts each function where it is made only if it may be used.

Redis makes the functions of a script anew in each call, some 0.1 µs each, and many are for what few calls meet: open
points, children, a parent. So what only one function uses stands inside of it, and is made when that one is called; and
inside of that again, what only that one uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

_WORD = re.compile(r"\w+")
_COMMENT = re.compile(r"--.*")
_DEFINITION = re.compile(r"^local (?:function )?([\w, ]+?)(?= =|\()", re.MULTILINE)
_FUNCTION = re.compile(r"local function \w+\(([^)]*)\)")


def words_of(text: str) -> set[str]:
    """The words of a text in Lua, without those of its comments."""
    return set(_WORD.findall(_COMMENT.sub("", text)))


class _Definition:
    """A function of a snippet, or constants of one."""

    def __init__(self, text: str) -> None:
        named, function = _DEFINITION.match(text), _FUNCTION.match(text)
        assert named is not None
        self.names, self.words = set(_WORD.findall(named[1])), words_of(text)
        self.is_function = function is not None
        self.parameters = set(_WORD.findall(function[1])) if function else set[str]()
        self.within: Sequence[_Definition] = ()
        """The functions inside of which it stands, from the outermost on."""
        self.inner: list[str] = []
        head = function.end() if function else 0
        self._head, self._body = text[:head], text[head:]

    @property
    def source(self) -> str:
        return self._head + "".join(f"\n{each}" for each in self.inner) + self._body

    @property
    def scope(self) -> Sequence[_Definition]:
        """The functions inside of which something stands that it uses."""
        return (*self.within, self) if self.is_function else self.within


def _definitions(snippet: str) -> Iterator[_Definition]:
    starts = [each.start() for each in _DEFINITION.finditer(snippet)]
    return (_Definition(snippet[start:end]) for start, end in zip(starts, [*starts[1:], None], strict=True))


def _shared(scopes: Iterable[Sequence[_Definition]]) -> Sequence[_Definition]:
    """The functions that all of these are inside of."""
    first, *others = scopes
    at = 0
    while at < len(first) and all(at < len(other) and other[at] is first[at] for other in others):
        at += 1
    return first[:at]


def needed(snippets: Iterable[str], words: set[str]) -> tuple[list[str], set[str]]:
    """What of the snippets a script with these words uses, also by way of others; and all words of both.

    `ValueError` for a parameter that has a function's name: it would hide that from what stands inside.
    """
    definitions = [each for snippet in snippets for each in _definitions(snippet)]
    names = set[str]().union(*(each.names for each in definitions))
    used: list[_Definition] = []
    # each uses only what stands before it
    for each in reversed(definitions):
        if hidden := each.parameters & names:
            raise ValueError(f"{', '.join(each.names)} has a parameter with a function's name: {', '.join(hidden)}")
        users = [other for other in used if not each.names.isdisjoint(other.words)]
        if not each.names.isdisjoint(words):
            used.append(each)
        elif users:
            each.within = _shared(user.scope for user in users)
            used.append(each)
    outermost: list[str] = []
    for each in reversed(used):
        (each.within[-1].inner if each.within else outermost).append(each.source)
    return outermost, words.union(*(each.words for each in used))
