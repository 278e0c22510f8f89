"""Which calls lose their connection: each of a script's calls once, so that its repetition passes."""

from __future__ import annotations

from memable import lua


class EachCall:
    """The first time of every call of a script; of a plain command, its very first time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: set[tuple[bytes, ...]] = set()
        script = lua.load(name) if name in lua.names() else None
        self._is_script = {b"EVALSHA": script.sha.encode(), b"EVAL": script.source.encode()} if script else {}

    def __call__(self, request: list[bytes]) -> bool:
        call: tuple[bytes, ...] = ()
        if self._is_script:
            if request[0] not in self._is_script or request[1] != self._is_script[request[0]]:
                return False
            call = tuple(request[2:])
        elif request[0] != self._name.encode():
            return False
        is_new = call not in self._seen
        self._seen.add(call)
        return is_new
