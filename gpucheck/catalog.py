"""The catalog: files → Server, Card and CpuFamily entries, and names as people type them.

A command validates only the entries it needs. The packed index in the package is used while it is
newer than the TOML files of a checkout; the user's own folder comes on top.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from gpucheck.errors import CatalogError, UsageError

if TYPE_CHECKING:
    from gpucheck.entries import Card, Cpu, CpuFamily, Server, Variant
    from gpucheck.facts import System

_PACKAGE = Path(__file__).resolve().parent
_INDEX = _PACKAGE / "_catalog.json"
_CHECKOUT = _PACKAGE.parent / "catalog"

# Words that say who made or sells it; people leave them out or add them.
_MAKER_WORDS = frozenset(
    [
        "dell",
        "emc",
        "poweredge",
        "huawei",
        "fusionserver",
        "supermicro",
        "superserver",
        "sys",
        "hpe",
        "hp",
        "proliant",
        "lenovo",
        "nvidia",
        "tesla",
        "geforce",
        "gtx",
        "rtx",
        "quadro",
        "amd",
        "radeon",
        "instinct",
        "intel",
        "arc",
        "graphics",
        "card",
        "gpu",
        "server",
    ]
)
_TOKEN = re.compile(r"[a-z]+|[0-9]+")

# What firmware and sellers put around a processor's number: "Intel(R) Xeon(R) CPU E5-2670 0 @ 2.60GHz".
_CPU_NOISE = re.compile(r"@.*|\((?:r|tm)\)|\b(?:intel|amd|cpu|processor|[0-9]+-core|0|v1)\b")
_CPU_NUMBER = re.compile(r"[0-9]{4}")

_SECTIONS = ("servers", "gpus", "software", "cpus")
"""Folders of the catalog, in the order of the fields of ``Catalog``."""

_LARGEST_FILE = 1 << 20
"""Bytes; the longest entry of the catalog has 30 thousand."""

_Model = TypeVar("_Model", bound=BaseModel)
_T = TypeVar("_T")
Raw = Mapping[str, Any]


@lru_cache(maxsize=4096)
def exact_name(text: str) -> str:
    """Letters and digits alone: ``RH2288 V3``, ``rh-2288v3`` and ``RH2288V3`` are one name."""
    return re.sub(r"[^a-z0-9+]", "", text.casefold())


def loose_name(text: str) -> str:
    """Letters and digits of a name without the words for makers and product lines."""
    words = re.split(r"[^a-z0-9+]+", text.casefold())
    kept = [word for word in words if word not in _MAKER_WORDS]
    return "".join(kept)


def cpu_name(text: str) -> str:
    """A processor's name, however it is written: ``Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz`` is ``xeone52680v4``."""
    return exact_name(_CPU_NOISE.sub(" ", text.casefold()))


def _tokens(text: str) -> frozenset[str]:
    words = re.split(r"[^a-z0-9+]+", text.casefold())
    return frozenset(piece for word in words if word not in _MAKER_WORDS for piece in _TOKEN.findall(word))


@dataclass(frozen=True, slots=True)
class CardMatch:
    """A card that a typed name means: the entry, and the maker's variant where one was named."""

    card: str
    variant: str | None = None


@dataclass
class Catalog:
    """Entries by id, validated when asked for.

    Args:
        servers: Id to raw TOML document.
        cards: Id to raw TOML document.
        software: Name to raw TOML document.
        cpus: Id of a family of processors to raw TOML document.
    """

    servers: Mapping[str, Raw]
    cards: Mapping[str, Raw]
    software: Mapping[str, Raw] = field(default_factory=dict)
    cpus: Mapping[str, Raw] = field(default_factory=dict)
    _checked: dict[str, BaseModel] = field(default_factory=dict)
    _kept: dict[Hashable, Any] = field(default_factory=dict)

    def kept(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """What ``make`` works out from the entries alone, worked out once for each key."""
        if key not in self._kept:
            self._kept[key] = make()
        found: _T = self._kept[key]
        return found

    def server(self, id: str) -> Server:
        """The server of that id. KeyError when there is none, CatalogError when its file is wrong."""
        from gpucheck.entries import Server

        return self._entry(Server, id, self.servers[id])

    def card(self, id: str) -> Card:
        """The card of that id. KeyError when there is none, CatalogError when its file is wrong."""
        from gpucheck.entries import Card

        return self._entry(Card, id, self.cards[id])

    def cpu_family(self, id: str) -> CpuFamily:
        """The family of processors of that id. KeyError when there is none, CatalogError when its file is wrong."""
        from gpucheck.entries import CpuFamily

        return self._entry(CpuFamily, id, self.cpus[id])

    def variant(self, match: CardMatch) -> tuple[Card, Variant | None]:
        """Card and maker's variant of a match."""
        card = self.card(match.card)
        return card, next((v for v in card.variants if v.id == match.variant), None)

    def _entry(self, model: type[_Model], id: str, raw: Raw) -> _Model:
        known = self._checked.get(id)
        if not isinstance(known, model):
            known = self._checked[id] = _validated(model, id, raw)
        return known

    # -- names -------------------------------------------------------------------------------

    @cached_property
    def _server_names(self) -> dict[str, set[str]]:
        names: dict[str, set[str]] = {}
        for id, raw in self.servers.items():
            vendor = str(raw.get("vendor", ""))
            for name in [id, raw.get("model", id), *raw.get("names", ())]:
                for form in (exact_name(str(name)), exact_name(f"{vendor} {name}"), loose_name(str(name))):
                    names.setdefault(form, set()).add(id)
        return names

    @cached_property
    def _card_names(self) -> tuple[dict[str, set[CardMatch]], dict[str, set[CardMatch]]]:
        exact: dict[str, set[CardMatch]] = {}
        loose: dict[str, set[CardMatch]] = {}
        for id, raw in self.cards.items():
            named = [(name, CardMatch(id)) for name in [id, raw.get("name", id), *raw.get("names", ())]]
            for variant in raw.get("variants", ()):
                match = CardMatch(id, str(variant.get("id")))
                named += [(name, match) for name in [variant.get("id"), *variant.get("names", ())]]
            for name, match in named:
                exact.setdefault(exact_name(str(name)), set()).add(match)
                loose.setdefault(loose_name(str(name)), set()).add(match)
        return exact, loose

    @cached_property
    def cpu_names(self) -> dict[str, list[tuple[str, str]]]:
        """Every form of a processor's name to the id of the family and the name; of several the last is meant."""
        names: dict[str, list[tuple[str, str]]] = {}
        for id, raw in self.cpus.items():
            for model in raw.get("models", ()):
                for form in cpu_forms(model):
                    names.setdefault(form, []).append((id, model["name"]))
        return names

    def find_cpu(self, text: str) -> tuple[CpuFamily, Cpu]:
        """Family and processor that a typed name or a ``model name`` line means. UsageError names the nearest."""
        if cpu_name(text) not in self.cpu_names:
            near = difflib.get_close_matches(cpu_name(text), self.cpu_names, n=9, cutoff=0.6)
            names = list(dict.fromkeys(self.cpu_names[form][-1][1] for form in near))[:3]
            raise UsageError(
                "no such processor in the catalog",
                input=text,
                hint=f"nearest: {', '.join(names)}" if names else "give its watts instead",
            )
        found = self.cpu_names[cpu_name(text)][-1]
        family = self.cpu_family(found[0])
        return family, next(cpu for cpu in family.models if cpu.name == found[1])

    def find_servers(self, text: str) -> tuple[str, ...]:
        """Ids of the models that a typed name means, usually one. UsageError names the nearest."""
        for form in (exact_name(text), loose_name(text)):
            if form and (found := self._server_names.get(form)):
                return tuple(sorted(found))
        raise UsageError(
            "no such server model in the catalog",
            input=text,
            hint=self._nearest(loose_name(text), self._server_names, self.servers, "model"),
        )

    def find_cards(self, text: str) -> tuple[CardMatch, ...]:
        """Cards that a typed name means; several where sizes share a name. UsageError names the nearest."""
        exact, loose = self._card_names
        found = exact.get(exact_name(text)) or loose.get(loose_name(text))
        wanted = _tokens(text)
        if not found and any(token.isdecimal() for token in wanted):
            # "3090 asus turbo": every word, a number among them, belongs to the name of one maker's variant.
            found = {
                CardMatch(id, str(variant.get("id")))
                for id, raw in self.cards.items()
                for variant in raw.get("variants", ())
                if any(wanted <= _tokens(f"{raw.get('name')} {name}") for name in variant.get("names", ()))
            }
        if found:
            return tuple(sorted(found, key=lambda match: (match.card, match.variant or "")))
        raise UsageError(
            "no such card in the catalog",
            input=text,
            hint=self._nearest(loose_name(text), loose, self.cards, "name"),
        )

    @staticmethod
    def _nearest(form: str, names: Mapping[str, Iterable[Any]], entries: Mapping[str, Raw], shown: str) -> str:
        near = difflib.get_close_matches(form, names, n=3, cutoff=0.5)
        ids = dict.fromkeys(getattr(hit, "card", hit) for name in near for hit in sorted(names[name], key=str))
        if not ids:
            return "gpucheck catalog list shows every name"
        return "nearest: " + ", ".join(str(entries[id].get(shown, id)) for id in ids)

    # -- machines ----------------------------------------------------------------------------

    def server_of(self, system: System) -> str | None:
        """Id of the model whose SMBIOS strings are exactly these; None when none or several are."""
        product, board = (_smbios(text) for text in (system.product, system.board))
        vendor = _smbios(system.vendor)
        hits = set()
        for id, raw in self.servers.items():
            for match in raw.get("smbios", ()):
                vendors = {_smbios(text) for text in match.get("vendor", ())}
                products = {_smbios(text) for text in match.get("product", ())}
                boards = {_smbios(text) for text in match.get("board", ())}
                if vendor is not None and vendors and vendor not in vendors:
                    continue
                by_product = products and product in products
                by_board = not products and boards and board in boards
                if by_product or by_board:
                    hits.add(id)
        return hits.pop() if len(hits) == 1 else None

    def cards_of(self, pci_id: str, subsystem: str | None = None) -> tuple[str, ...]:
        """Ids of the cards that answer with this PCI id; a listed subsystem decides between them."""
        plain, exact = set(), set()
        for id, raw in self.cards.items():
            for row in raw.get("pci", ()):
                if row.get("id") != pci_id:
                    continue
                if row.get("subsystem") is None:
                    plain.add(id)
                elif row.get("subsystem") == subsystem:
                    exact.add(id)
        return tuple(sorted(exact or plain))


def cpu_forms(model: Raw) -> frozenset[str]:
    """``Xeon Gold 6248``, ``Gold 6248``, ``6248`` and ``Xeon 6248`` are one. A bare ``2680`` of the E5 line is none:
    people who leave the version out do not mean the first one.

    Args:
        model: One of ``models`` of a family of processors.
    """
    return frozenset(form for name in (model["name"], *model.get("names", ())) for form in _cpu_forms(name))


def _cpu_forms(name: str) -> Iterator[str]:
    words = re.split(r"[ -]+", name)
    for start in range(len(words)):
        rest = words[start:]
        if not _CPU_NUMBER.search(rest[0]):
            yield cpu_name(" ".join(rest))
        elif len(rest) > 1 or words[start - 1] != "E5":
            yield cpu_name(" ".join(rest))
            yield cpu_name(f"{words[0]} {' '.join(rest)}")
            return


def _smbios(text: str | None) -> str | None:
    return " ".join(text.casefold().split()) if text else None


def _validated(model: type[_Model], id: str, raw: Raw) -> _Model:
    try:
        entry = model.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CatalogError(f"{where}: {first['msg']}", input=f"catalog entry {id}") from None
    stated = getattr(entry, "id", id)
    if stated != id:
        raise CatalogError(f"its id is {stated!r}, not the file's name", input=f"catalog entry {id}")
    return entry


def load(folder: str | Path | None = None) -> Catalog:
    """The catalog, with the user's own folder on top.

    Args:
        folder: A folder of TOML entries, as ``--catalog`` names it.

    Raises:
        CatalogError: a file is not TOML, or the folder cannot be read.
    """
    index = _index()
    if folder is not None:
        own = _own(Path(folder))
        index = {section: {**index.get(section, {}), **own[section]} for section in own}
    servers, cards, software, cpus = (index.get(section, {}) for section in _SECTIONS)
    return Catalog(servers, cards, software, cpus)


def _index() -> dict[str, dict[str, Any]]:
    sources = list(_CHECKOUT.rglob("*.toml")) if (_CHECKOUT / "servers").is_dir() else []
    if _INDEX.is_file() and (not sources or _is_fresh(sources)):
        index: dict[str, dict[str, Any]] = json.loads(_INDEX.read_bytes())
        if not sources or sum(map(len, index.values())) == len(sources):
            return index
    return {section: _documents((_CHECKOUT / section).rglob("*.toml")) for section in _SECTIONS}


def _is_fresh(sources: list[Path]) -> bool:
    packed = _INDEX.stat().st_mtime_ns
    return all(path.stat().st_mtime_ns <= packed for path in sources)


def _documents(paths: Iterable[Path]) -> dict[str, Any]:
    documents = {}
    for path in sorted(paths):
        try:
            if not path.is_file() or path.stat().st_size > _LARGEST_FILE:
                raise CatalogError("not a catalog file: no file, or too large", input=str(path), hint="take it away")
            documents[path.stem] = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, RecursionError, tomllib.TOMLDecodeError) as error:
            raise CatalogError(f"not a catalog file: {error}", input=str(path), hint="mend it") from None
    return documents


def _own(folder: Path) -> dict[str, dict[str, Any]]:
    if not folder.is_dir():
        raise CatalogError("no such folder", input=str(folder), hint="give a folder of TOML entries")
    sorted_out: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    for id, document in _documents(folder.rglob("*.toml")).items():
        for key in ("names", "pci", "variants", "smbios", "slots", "models"):
            kind = str if key == "names" else dict
            rows = document.get(key, [])
            if not isinstance(rows, list) or not all(isinstance(row, kind) for row in rows):
                raise CatalogError(
                    f"{key}: not a list of {'texts' if kind is str else 'tables'}", input=f"{folder}: {id}.toml"
                )
        if "slots" in document and "sockets" in document:
            sorted_out["servers"][id] = document
        elif "pci" in document:
            sorted_out["gpus"][id] = document
        elif "models" in document:
            if not all(isinstance(model.get("name"), str) for model in document["models"]):
                raise CatalogError("models: one has no name", input=f"{folder}: {id}.toml")
            sorted_out["cpus"][id] = document
        else:
            raise CatalogError(
                "neither a server (slots, sockets) nor a card (pci) nor processors (models)",
                input=f"{folder}: {id}.toml",
                hint="mend it",
            )
    return sorted_out
