"""What instances waited for: signals, messages, choices, deadlines."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence

from chaos.evidence import Answer, Signalled
from chaos.facts import Facts
from chaos.history import RETRYING, Place

_DECIDED_OTHERWISE = ("timer", "choice")
"""What completes a point instead of a signal, so that each of these comes too late."""


def signals(facts: Facts) -> Iterator[str]:
    """Lost or doubled, or answered with what is not so."""
    by_place: defaultdict[Place, list[Signalled]] = defaultdict(list)
    for each in facts.seen.signalled:
        by_place[each.name, each.key].append(each)
    for (name, key), sent in by_place.items():
        accepted = {each.signal_id: each for each in sent if each.answer is Answer.ACCEPTED}
        refused = [each for each in sent if each.answer is Answer.SUPERSEDED]
        completers = facts.seen.history.completers.get((name, key), [])
        if len(accepted) > 1:
            yield f"{key!r} of {name}: the signals {sorted(accepted)} were all accepted"
        if refused and not accepted and not any(by and by.split()[0] in _DECIDED_OTHERWISE for by in completers):
            yield f"{key!r} of {name}: {len(refused)} signals were superseded, and none was accepted"
        is_cancelled = facts.status(name) == "cancelled"
        if len(refused) + len(accepted) < len({each.signal_id for each in sent}) and not is_cancelled:
            yield f"{key!r} of {name}: a signal was rejected, and the instance was not cancelled"
        for signal_id, each in accepted.items():
            texts = [written.text for written in facts.records.get((name, key), ())]
            results = [json.loads(text).get("result") for text in texts]
            if is_cancelled and not completers:
                continue  # kept for a point that was never reached
            if completers != [f"signal {signal_id}"] or results != [each.payload]:
                yield f"{key!r} of {name}: accepted was {signal_id}, recorded is {results} by {completers}"
    for (name, key), by in facts.seen.history.completers.items():
        if len([each for each in by if each is not None]) > 1:
            yield f"{key!r} of {name} was completed more than once: {by}"


def messages(facts: Facts) -> Iterator[str]:
    """Received more than once; that all came, in order, shows in what their instances return."""
    receivers: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for (name, key), completers in facts.seen.history.completers.items():
        for each in completers:
            if each is not None and each.startswith("message "):
                receivers[name, each].append(key)
    for (name, message), keys in receivers.items():
        if len(keys) > 1:
            yield f"{message} to {name} was received more than once: by {keys}"


def choices(facts: Facts) -> Iterator[str]:
    """Signals that were accepted, and not chosen."""
    for (name, key), records in facts.records.items():
        for written in records:
            if written.kind == "choice":
                chosen = json.loads(written.text)["result"]
                if others := _accepted_of_others(facts, name, chosen):
                    yield f"{key!r} of {name} chose {chosen!r}, and accepted were signals to {others}"


def _accepted_of_others(facts: Facts, name: str, chosen: str) -> Sequence[str]:
    """To which other points a signal was accepted. All that were signalled race."""
    accepted = {each.key for each in facts.seen.signalled if each.name == name and each.answer is Answer.ACCEPTED}
    return sorted(accepted - {chosen})


def timers(facts: Facts) -> Iterator[str]:
    """Early, or with more than one deadline."""
    history = facts.seen.history
    for (name, key), dues_ms in history.dues_ms.items():
        backs_off = any(text and text.startswith(RETRYING) for text in history.records.get((name, key), ()))
        if len(set(dues_ms)) > 1 and not backs_off and not facts.resumed_s(name):
            yield f"timer {key!r} of {name} had the deadlines {dues_ms}"
    for timer in facts.stalls.fired:
        name, key = timer.place
        # a cancel takes deadlines away: what is resumed then begins at once, and waits anew
        if timer.at_s < timer.due_s and not facts.resumed_s(name):
            yield f"timer {key!r} of {name} fired {(timer.due_s - timer.at_s) * 1000:.0f} ms early"
