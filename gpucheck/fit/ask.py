"""From what a person typed (and what a probe found) to requests, and to the answer."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpucheck.catalog import CardMatch, Catalog
from gpucheck.entries import Server
from gpucheck.errors import InputError, UsageError
from gpucheck.fit.advise import EXIT_CODES, advise_any, rank
from gpucheck.fit.prices import priced
from gpucheck.fit.report import Advice, RoomLeft, SlotTopology
from gpucheck.fit.request import (
    Order,
    Processor,
    PsuPlan,
    Request,
    Use,
    Wanted,
    checked_count,
    parse_gpu,
    parse_psus,
    parse_ram,
    parse_slot,
    processor,
    resolve_option,
)
from gpucheck.fit.room import room_left
from gpucheck.fit.seller import finished
from gpucheck.power import Redundancy
from gpucheck.text import say

if TYPE_CHECKING:
    from gpucheck.facts import Machine, Psu


@dataclass(frozen=True, slots=True)
class Asked:
    """The words of a question, as typed; see ``gpucheck advise --help``."""

    words: tuple[str, ...] = ()
    model: str | None = None
    gpus: tuple[str, ...] = ()
    count: int | None = None
    cpus: int | None = None
    cpu_watts: int | None = None
    psu: str | None = None
    risers: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    input_volts: int | None = None
    redundancy: Redundancy | None = None
    ambient_c: int | None = None
    cpu: str | None = None
    ram: str | None = None
    use: Use | None = None
    prices: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


def answer(asked: Asked, catalog: Catalog) -> Advice:
    """Answer a question.

    Raises:
        UsageError: a name is unknown or options contradict each other.
        InputError: a ``--from`` cannot be read.
    """
    if asked.cpu is not None and asked.cpu_watts is not None:
        raise UsageError("a CPU's name says its watts", input=f"--cpu-tdp {asked.cpu_watts}", hint="give --cpu alone")
    model, texts = _sorted_words(asked, catalog)
    meanings = _meanings(texts, asked.count, catalog)
    psus = parse_psus(asked.psu) if asked.psu is not None else None
    if model is None and not asked.sources and meanings[0]:
        return _ranking(asked, meanings, psus, catalog)
    machine = _machine(asked, catalog) if model is None or asked.sources else None
    _same_model(model, machine, catalog)
    servers = _servers(model, machine, asked, catalog)
    requests = [_request(server, asked, orders, psus, machine, catalog) for server in servers for orders in meanings]
    request, advice = advise_any(requests)
    return priced(request, finished(request, advice), asked.prices)


def room_for(machine: Machine, gpu: str, catalog: Catalog) -> tuple[RoomLeft, ...] | None:
    """How many more of a card a probed machine takes; of a name's several meanings the one with the least room.
    None where the machine does not tell enough to be asked.

    Raises:
        UsageError: no card is called so.
    """
    meanings = _meanings((gpu,), None, catalog)
    asked = Asked(gpus=(gpu,))
    try:
        servers = _servers(None, machine, asked, catalog)
    except (UsageError, InputError):
        return None
    answers = [room_left(_request(servers[0], asked, orders, None, machine, catalog)) for orders in meanings]
    return min(answers, key=lambda told: sum(left.more for left in told))


def _sorted_words(asked: Asked, catalog: Catalog) -> tuple[str | None, tuple[str, ...]]:
    """Model and cards out of ``[MODEL] [NxGPU]...`` and the options."""
    words = list(asked.words)
    model = asked.model
    if words and model is None and not _means_card(words[0], catalog):
        model = words.pop(0)
    return model, (*words, *asked.gpus)


def _means_card(word: str, catalog: Catalog) -> bool:
    """Whether a word in the place of the model is a card: it has a count, or is called so and no model is."""
    if re.match(r"\d{1,4}\s*[x×]\s*\S", word, re.IGNORECASE):
        return True
    name = re.split("[@:]", word)[0]
    return not _known(catalog.find_servers, word) and _known(catalog.find_cards, name)


def _known(find: Callable[[str], object], name: str) -> bool:
    try:
        find(name)
    except UsageError:
        return False
    return True


def _meanings(texts: Sequence[str], count: int | None, catalog: Catalog) -> tuple[tuple[Order, ...], ...]:
    """The cards that are asked for; more than one reading where a name means cards that fit differently."""
    parsed = [(slot, *parse_gpu(card)) for card, slot in map(parse_slot, texts)]
    if count is not None:
        if len(parsed) != 1 or parsed[0][2] is not None:
            raise UsageError(
                "it goes with exactly one --gpu that has no number of its own",
                input=f"--count {count}",
                hint="write --gpu P40:2 --gpu T4:1 for several",
            )
        parsed = [(parsed[0][0], parsed[0][1], checked_count(count, f"--count {count}"))]
    readings = []
    for choice in itertools.product(*(_unlike(name, catalog) for _, name, _ in parsed)):
        counted: dict[tuple[CardMatch, str | None], int] = {}
        for match, (slot, _, number) in zip(choice, parsed, strict=True):
            if slot is not None and (number or 1) > 1:
                raise UsageError("one slot holds one card", input=f"@{slot}", hint="write --gpu P40@6 --gpu P40@4")
            counted[match, slot] = counted.get((match, slot), 0) + (number or 1)
        readings.append(tuple(Order(Wanted(*catalog.variant(match)), n, slot) for (match, slot), n in counted.items()))
    return tuple(readings)


def _unlike(name: str, catalog: Catalog) -> tuple[CardMatch, ...]:
    """Cards that a name means, one of each that differs in what decides whether it fits."""
    unlike: dict[str, CardMatch] = {}
    if not _known(catalog.find_cards, name) and _known(catalog.find_servers, name):
        raise UsageError("a server model where a card is expected", input=name, hint="name one model only")
    for match in catalog.find_cards(name):
        unlike.setdefault(_outline(match, catalog), match)
    return tuple(unlike.values())


def _outline(match: CardMatch, catalog: Catalog) -> str:
    wanted = Wanted(*catalog.variant(match))
    plugs = sorted((plug.kind, plug.count) for plug in wanted.aux.plugs) if wanted.aux else None
    size = wanted.size
    watts = wanted.power.watts if wanted.power else None
    cooling = wanted.cooling.kind if wanted.cooling else None
    bar1 = wanted.card.bar1.bytes if wanted.card.bar1 else None
    return repr((size.slots_wide, size.length_mm, size.height_mm, size.profile, plugs, watts, cooling, bar1))


# --- what a probe adds --------------------------------------------------------------------------


def _machine(asked: Asked, catalog: Catalog) -> Machine:
    from gpucheck.assemble import assemble
    from gpucheck.probing import gather

    return assemble(gather(asked.sources, timeout=2.0), catalog)


def _servers(model: str | None, machine: Machine | None, asked: Asked, catalog: Catalog) -> tuple[Server, ...]:
    """The models that are asked about: those of a name, else the machine's own, derived from its facts if need be."""
    if machine is not None and machine.catalog_model is not None:
        return (catalog.server(machine.catalog_model),)
    if model is not None:
        return tuple(catalog.server(id) for id in catalog.find_servers(model))
    from gpucheck.fit.derived import derive

    assert machine is not None
    return (derive(machine, ", ".join(asked.sources) or say("this machine")),)


def _same_model(model: str | None, machine: Machine | None, catalog: Catalog) -> None:
    """What was found in one model says nothing about another."""
    found = machine.catalog_model if machine is not None else None
    if model is not None and found is not None and found not in catalog.find_servers(model):
        raise UsageError(
            say("it is not the machine that --from shows, the {model}", model=catalog.server(found).model),
            input=model,
            hint="leave the model out, or give a dump of that model",
        )


def _request(
    server: Server,
    asked: Asked,
    orders: tuple[Order, ...],
    psus: PsuPlan | None,
    machine: Machine | None,
    catalog: Catalog,
) -> Request:
    if asked.cpus is not None and not 1 <= asked.cpus <= server.sockets.count:
        raise UsageError(
            say("the {model} has {count} CPU sockets", model=server.model, count=server.sockets.count),
            input=f"--cpus {asked.cpus}",
        )
    options: dict[str, str] = {}
    stated = [(text, True) for text in asked.risers] + [(text, False) for text in asked.options]
    for text, riser in stated:
        key, choice = resolve_option(server, text, riser=riser)
        if options.setdefault(key, choice) != choice:
            raise UsageError(f"it was {options[key]} before", input=text, hint="state each riser and option once")
    if psus is not None and server.power.bays is not None and psus.count > server.power.bays:
        raise UsageError(
            say("the {model} has {bays} bays for power supplies", model=server.model, bays=server.power.bays),
            input=f"--psu {asked.psu}",
        )
    cpu = processor(asked.cpu, catalog) if asked.cpu is not None else None
    request = Request(
        server=server,
        orders=tuple(
            order if order.slot is None else replace(order, slot=_slot(server, order.slot)) for order in orders
        ),
        cpus=asked.cpus,
        cpu_watts=cpu.watts if cpu is not None else asked.cpu_watts,
        cpu=cpu,
        psus=psus,
        options=options,
        input_volts=asked.input_volts,
        redundancy=asked.redundancy,
        ambient_c=asked.ambient_c,
        ram_bytes=parse_ram(asked.ram) if asked.ram is not None else None,
        use=asked.use,
        catalog=catalog,
    )
    return with_found(request, machine) if machine is not None else request


def _told_by_bmc(machine: Machine) -> int | None:
    """TDP of the hungriest CPU, where a BMC tells."""
    told = [socket.tdp_watts for socket in machine.cpu_sockets or () if socket.tdp_watts is not None]
    return max(told, default=None)


def _cpu_found(machine: Machine, catalog: Catalog | None) -> Processor | None:
    """The CPU that a probe read, where the catalog knows it; of several models the first."""
    names = [socket.model for socket in machine.cpu_sockets or () if socket.populated is not False]
    names += [machine.cpu.model] if machine.cpu is not None else []
    for name in filter(None, names):
        try:
            return processor(name, catalog, found=True) if catalog is not None else None
        except UsageError:
            continue
    return None


def _slot(server: Server, name: str) -> str:
    """Id of the slot that a person names, by its number or by what the firmware calls it."""
    wanted = name.casefold().removeprefix("slot").strip()
    for row in server.slots:
        if wanted in {known.casefold() for known in (row.id, *row.designations)}:
            return row.id
    known = ", ".join(dict.fromkeys(row.id for row in server.slots))
    raise UsageError(say("the {model} has no such slot", model=server.model), input=f"@{name}", hint=f"known: {known}")


def with_found(request: Request, machine: Machine) -> Request:
    """What a probe found counts as stated, unless the person states otherwise; the cards in it stay where they are."""
    from gpucheck.fit.found import standing

    server, catalog = request.server, request.catalog or Catalog({}, {})
    stands = standing(server, machine, catalog, request.options)
    cpus = _cpus_found(machine, server) or stands.cpus
    psus = _psus_found(machine.psus)
    cpu = request.cpu
    if cpu is None and request.cpu_watts is None:
        cpu = _cpu_found(machine, request.catalog)
    return replace(
        request,
        orders=(*stands.fitted, *request.orders),
        cpus=request.cpus or cpus,
        cpu=cpu,
        cpu_watts=request.cpu_watts or (cpu.watts if cpu is not None else None) or _told_by_bmc(machine),
        ram_bytes=request.ram_bytes or machine.memory_bytes,
        psus=request.psus or psus,
        occupied=stands.occupied,
        kept=frozenset(one.slot for one in stands.strangers if one.slot is not None),
        options=stands.options,
        strangers=stands.strangers,
        probed=True,
        remarks=(*stands.remarks, *_contradictions(request, cpus, psus)),
        address_bits=machine.cpu.physical_address_bits if machine.cpu is not None else None,
        bios_version=machine.system.bios_version if machine.system is not None else None,
    )


def _contradictions(request: Request, cpus: int | None, psus: PsuPlan | None) -> Iterator[str]:
    """What is stated and differs from what was found: the statement is judged, and the person is told."""
    if request.cpus is not None and cpus is not None and request.cpus != cpus:
        template = "The machine shows so many CPUs: {found}. Stated, and judged here: {stated}."
        yield say(template, found=cpus, stated=request.cpus)
    if request.psus is not None and psus is not None and request.psus != psus:
        yield say(
            "The machine shows power supplies of {count} × {watts} W. Stated, and judged here: {stated} × {each} W.",
            count=psus.count,
            watts=psus.watts,
            stated=request.psus.count,
            each=request.psus.watts,
        )


def _cpus_found(machine: Machine, server: Server) -> int | None:
    """CPUs that are fitted, as the firmware says; else as many packages as the kernel runs on."""
    populated = [socket.populated for socket in machine.cpu_sockets or ()]
    if populated and None not in populated and any(populated):
        return min(populated.count(True), server.sockets.count)
    packages = machine.cpu.packages if machine.cpu is not None else None
    return min(packages, server.sockets.count) if packages is not None else None


def _psus_found(psus: Sequence[Psu] | None) -> PsuPlan | None:
    """Supplies that are there and have mains, each counted as the smallest; None where a rating is not known."""
    live = [psu for psu in psus or () if psu.present is not False and psu.plugged is not False]
    watts = [psu.watts for psu in live if psu.watts is not None]
    if not watts or len(watts) < len(live):
        return None
    return PsuPlan(len(live), min(watts))


# --- every model --------------------------------------------------------------------------------


def _ranking(asked: Asked, meanings: tuple[tuple[Order, ...], ...], psus: PsuPlan | None, catalog: Catalog) -> Advice:
    if asked.risers or asked.options:
        raise UsageError("a riser or option belongs to one model", hint="name the model with --model")
    if asked.prices:
        raise UsageError("what must be ordered differs by model", input="--price", hint="name the model with --model")
    orders = meanings[0]
    servers = [catalog.server(id) for id in sorted(catalog.servers)]
    requests = [
        _request(server, asked, orders, psus, None, catalog)
        for server in servers
        if asked.cpus is None or 1 <= asked.cpus <= server.sockets.count
    ]
    if not requests:
        raise UsageError("no model in the catalog has so many CPU sockets", input=f"--cpus {asked.cpus}")
    ranked = rank(requests)
    best = ranked[0]
    cards = " + ".join(f"{order.count} × {order.wanted.name}" for order in orders)
    fitting = [candidate for candidate in ranked if candidate.verdict in ("fits", "fits-with-changes")]
    headline = (
        say(
            "{count} models in the catalog take {cards}; first: {model}.",
            count=len(fitting),
            cards=cards,
            model=best.model,
        )
        if fitting
        else say("No model in the catalog is known to take {cards}.", cards=cards)
    )
    return Advice(
        headline=headline,
        verdict=best.verdict,
        exit_code=EXIT_CODES[best.verdict],
        server=None,
        model=None,
        candidates=ranked,
        request=requests[0].as_stated(),
        max_count=best.max_count,
        max_with_changes=best.max_with_changes,
        capacity=(),
        placement=(),
        checks=(),
        power=None,
        topology=SlotTopology(slots=(), matrix=()),
        shopping_list=(),
        questions=(),
        conditions=(),
        alternatives=(),
    )
