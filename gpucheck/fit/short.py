"""A plan in a few words, for one line of a table."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpucheck.fit.plans import Plan
from gpucheck.text import plural, say

_ASIDE = re.compile(r":| with | \(|, ")
"""Where a thing's name ends and what tells it apart begins."""

_TOPICS = {
    "slot": "slots",
    "socket": "CPUs",
    "width": "width",
    "geometry": "size",
    "plug": "power plugs",
    "watts": "watts",
    "address-space": "address space",
    "address-bits": "address bits of the CPU",
    "cooling": "cooling",
    "support": "the vendor's rules",
}


def in_short(plan: Plan) -> str:
    """What the plan takes (``2 CPUs, alternate riser 3``), what of it is not known, or what is in the way."""
    failed = [ruling.check.topic for ruling in plan.rulings if ruling.check.outcome == "fail"]
    if failed:
        # That cards find no slot is the outcome; another topic says why.
        return say("in the way: {topics}", topics=_in_words([t for t in failed if t != "slot"] or failed))
    needed = ", ".join(_needed(plan))
    unknown = [r.check.topic for r in plan.rulings if r.essential and r.check.outcome == "unknown"]
    if not unknown:
        return needed or _unconfirmed(plan)
    if not needed:
        return say("not known: {topics}", topics=_in_words(unknown))
    return say("{needed}; not known: {topics}", needed=needed, topics=_in_words(unknown))


def _unconfirmed(plan: Plan) -> str:
    """What is left where nothing is to be ordered."""
    count = len({condition.text for ruling in plan.rulings for condition in ruling.conditions})
    if not count:
        return say("nothing")
    return say(plural(count, "nothing, if one condition holds", "nothing, if {count} conditions hold"), count=count)


def _in_words(topics: list[str]) -> str:
    return ", ".join(_TOPICS.get(topic, topic) for topic in dict.fromkeys(topics))


def _needed(plan: Plan) -> Iterator[str]:
    request, build = plan.case.request, plan.case.build
    if request.cpus is None and build.cpus > 1:
        yield say("{count} CPUs", count=build.cpus)
    for key, option in request.server.options.items():
        chosen = build.options[key]
        if key not in request.options and chosen != next(iter(option.choices)):
            yield _brief(option.choices[chosen].called)
    items = {
        topic: tuple(dict.fromkeys(i for r in plan.rulings if r.check.topic == topic for i in r.items))
        for topic in ("watts", "plug", "parts")
    }
    yield from (say("{count} × {item}", count=item.quantity, item=_brief(item.item)) for item in items["watts"])
    cables = sum(item.quantity for item in items["plug"])
    if cables:
        yield say(plural(cables, "a power cable", "{count} power cables"), count=cables)
    yield from (_brief(item.item) for item in items["parts"])


def _brief(name: str) -> str:
    return _ASIDE.split(name, maxsplit=1)[0]
