"""The command line: commands, options, exit codes. What to do stands elsewhere."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpucheck import __version__
from gpucheck.errors import GpucheckError, NotCheckable, UsageError

if TYPE_CHECKING:
    from gpucheck.catalog import Catalog
    from gpucheck.findings import Document
    from gpucheck.fit.report import Advice
    from gpucheck.redfish import BmcAccess

app = typer.Typer(
    name="gpucheck",
    help="Which GPUs a server can take, why a card is not seen, and proof by training that every card works.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
catalog_app = typer.Typer(help="What is known of servers and cards, with sources.", no_args_is_help=True)
app.add_typer(catalog_app, name="catalog")


class Language(StrEnum):
    """Languages of the sentences."""

    en = "en"


class RedundancyWord(StrEnum):
    """How many power supplies may fail."""

    none = "none"
    n_plus_1 = "n+1"
    n_plus_n = "n+n"


class UseWord(StrEnum):
    """What the cards are for."""

    train = "train"
    infer = "infer"


class StrategyWord(StrEnum):
    """How a net is laid out over the cards."""

    mirrored = "mirrored"
    central = "central"
    model = "model"
    hybrid = "hybrid"


class SplitWord(StrEnum):
    """Who gets how much of a batch."""

    even = "even"
    auto = "auto"


class BusyWord(StrEnum):
    """What to do with a card that somebody else uses."""

    fail = "fail"
    skip = "skip"
    wait = "wait"


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown to paste into a forum or an issue.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit 1 for warnings and for changes that are needed, too.")]
Lang = Annotated[Language, typer.Option("--lang", help="Language of the sentences.")]
From = Annotated[
    list[str] | None,
    typer.Option(
        "--from",
        metavar="PATH",
        help="A capture, a dump or a folder instead of this machine; - reads standard input. Several of one "
        "machine are merged.",
    ),
]
CatalogFolder = Annotated[
    str | None, typer.Option("--catalog", metavar="DIR", help="Folder with catalog entries of your own.")
]
Expect = Annotated[int | None, typer.Option("--expect-gpus", metavar="N", min=0, help="How many GPUs there should be.")]


Bmc = Annotated[
    str | None, typer.Option("--bmc", metavar="URL", help="Also ask this BMC by Redfish: https://its-address.")
]
BmcAuth = Annotated[
    str | None,
    typer.Option(
        "--bmc-auth",
        metavar="FILE",
        help="User and password for the BMC, on two lines; otherwise GPUCHECK_BMC_USER and GPUCHECK_BMC_PASSWORD.",
    ),
]
BmcCa = Annotated[
    str | None, typer.Option("--bmc-ca", metavar="FILE", help="Certificates (PEM) to check that of the BMC with.")
]
BmcInsecure = Annotated[bool, typer.Option("--bmc-insecure", help="Do not check the certificate of the BMC.")]
BmcTimeout = Annotated[
    float, typer.Option("--bmc-timeout", metavar="S", min=0.1, max=86400, help="Seconds that the BMC may take.")
]
Ipmi = Annotated[bool, typer.Option("--ipmi", help="Also ask the BMC for power supplies and its log (ipmitool, root).")]


def _bmc_access(url: str | None, auth: str | None, ca: str | None, insecure: bool, timeout: float) -> BmcAccess | None:
    """What the options say of a BMC; UsageError for one that has no meaning without ``--bmc``."""
    if url is None:
        for option, given in (("--bmc-auth", auth), ("--bmc-ca", ca), ("--bmc-insecure", insecure)):
            if given:
                raise UsageError("it has no meaning without --bmc", input=option, hint="add --bmc https://ADDRESS")
        return None
    from gpucheck.redfish import access

    return access(url, auth, ca_file=ca, insecure=insecure, timeout=timeout)


_IN_MODULES = ("check", "fleet")
"""Commands that stand in :mod:`gpucheck.commands`."""


def _load_commands(arguments: Sequence[str]) -> None:
    """Import the modules of the commands that this line may name; ``probe`` and the like need none of them."""
    word = next((word for word in arguments if not word.startswith("-")), None)
    here = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    if word in here or word in {group.name for group in app.registered_groups}:
        return
    for name in (word,) if word in _IN_MODULES else _IN_MODULES:
        import_module(f"gpucheck.commands.{name}")


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return the exit code. Faults become one line, or one JSON document."""
    _load_commands(arguments)
    command = typer.main.get_command(app)
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by the caller (>&-)
            setattr(sys, stream, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(getattr(sys, stream), "reconfigure"):
            getattr(sys, stream).reconfigure(errors="replace")  # a pipe that is not UTF-8 gets ? for ×
    try:
        _refuse_repeats(arguments)
        result = command.main(list(arguments), prog_name="gpucheck", standalone_mode=False)
        sys.stdout.flush()
    except typer.Abort:
        return 130
    except typer.TyperException as error:
        if not error.format_message():  # no command: the help was printed instead
            return UsageError.exit_code
        context = getattr(error, "ctx", None)
        hint = f"{context.command_path} --help" if context is not None else "gpucheck --help"
        if "--from" in arguments and "unexpected extra argument" in error.format_message():
            hint = "repeat --from for each file: --from A --from B"
        return _refuse(UsageError(error.format_message(), hint=hint), arguments)
    except GpucheckError as error:
        return _refuse(error, arguments)
    except (BrokenPipeError, SystemExit) as stop:
        # The reader of a pipe has gone (| head): no fault of ours. Typer and rich make an exit of 1 of it,
        # which would say that a problem was found.
        if isinstance(stop, SystemExit) and stop.code != 1:
            raise
        _drop_output()
        return 141
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return _own_fault(error, arguments)
        _drop_output()
        return _refuse(UsageError(f"standard output cannot be written: {error.strerror}"), ())
    except Exception as error:
        return _own_fault(error, arguments)
    return result if isinstance(result, int) else 0


def _own_fault(error: Exception, arguments: Sequence[str]) -> int:
    """A fault of gpucheck's own must not look like a verdict: Python's exit code for it would be 1."""
    if os.environ.get("GPUCHECK_TRACEBACK"):
        raise error
    fault = NotCheckable(
        f"a fault in gpucheck itself: {type(error).__name__}: {error}",
        hint="please report it with the output of the same command under GPUCHECK_TRACEBACK=1",
    )
    return _refuse(fault, arguments)


_REPEATABLE = frozenset(("--from", "--gpu", "--riser", "--option", "--price"))


def _refuse_repeats(arguments: Sequence[str]) -> None:
    """An option that is given twice has two values: taking the last in silence would answer another question."""
    names = [word.partition("=")[0] for word in arguments if word.startswith("--") and len(word) > 2]
    for name in dict.fromkeys(names):
        if names.count(name) > 1 and name not in _REPEATABLE:
            raise UsageError("it is given more than once", input=name, hint="give it once")


def _drop_output() -> None:
    """Let nothing be written at exit: what Python still holds would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse(error: GpucheckError, arguments: Sequence[str]) -> int:
    from gpucheck.text import clean, shorten

    if error.input:  # a very long one would leave no room for the cause
        error.input = shorten(error.input, 200)
    if "--json" in arguments:
        from gpucheck.findings import ErrorDocument

        document = ErrorDocument.of(error)
        print(document.model_dump_json(by_alias=True, indent=2))
    else:
        print(f"gpucheck: {clean(str(error))}", file=sys.stderr)
    return error.exit_code


def _show(document: Document, kind: str, *, as_json: bool, markdown: bool) -> None:
    """Print a document in the form that was asked for; only that form's module is imported."""
    if as_json:
        print(document.model_dump_json(by_alias=True, indent=2))
    elif markdown:
        from gpucheck.render import markdown as pages

        print(getattr(pages, kind)(document))
    else:
        from gpucheck.render import text

        getattr(text, kind)(document)


def _print_listing(kind: str, headline: str, **content: Any) -> None:
    from gpucheck.findings import Listing

    print(Listing(schema_=f"gpucheck/{kind}/1", headline=headline, **content).model_dump_json(indent=2))


def _catalog(folder: str | None) -> Catalog:
    from gpucheck.catalog import load

    return load(folder)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        print(f"gpucheck {__version__}")
        raise typer.Exit


@app.command(epilog="Example: gpucheck probe --expect-gpus 2")
def probe(
    sources: From = None,
    expect_gpus: Expect = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline", metavar="FILE", help="An earlier probe (its JSON), capture or dump of it: what has changed?"
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="S", min=0.1, max=86400, help="Seconds that NVML may take.")
    ] = 10,
    ipmi: Ipmi = False,
    bmc: Bmc = None,
    bmc_auth: BmcAuth = None,
    bmc_ca: BmcCa = None,
    bmc_insecure: BmcInsecure = False,
    bmc_timeout: BmcTimeout = 60,
    catalog: CatalogFolder = None,
    as_json: Json = False,
    markdown: Markdown = False,
    strict: Strict = False,
    lang: Lang = Language.en,
) -> int:
    """What is in this machine, and why is a card not seen?"""
    from gpucheck.probing import probe as look

    if not sources and not sys.platform.startswith("linux"):
        raise NotCheckable("hardware can be read on Linux only", hint="give a capture or a dump with --from")
    report = look(
        sources or (),
        expect_gpus=expect_gpus,
        timeout=timeout,
        ask_ipmi=ipmi,
        bmc=_bmc_access(bmc, bmc_auth, bmc_ca, bmc_insecure, bmc_timeout),
        baseline=baseline,
        catalog=_catalog(catalog),
    )
    if strict and report.exit_code == 0 and any(finding.severity == "warning" for finding in report.findings):
        report = report.model_copy(update={"exit_code": 1})
    _show(report, "probe", as_json=as_json, markdown=markdown)
    return report.exit_code


@app.command(epilog="Example: gpucheck advise --model R730 --gpu P40 --count 2 --cpus 2 --psu 2x1100")
def advise(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL] [NxGPU]...", help="Short form: gpucheck advise R730 2xP40")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Server model, as people say it.")
    ] = None,
    gpu: Annotated[list[str] | None, typer.Option("--gpu", metavar="NAME[:N]", help="Card, and how many.")] = None,
    count: Annotated[int | None, typer.Option("--count", metavar="N", help="How many of the one card.")] = None,
    cpus: Annotated[int | None, typer.Option("--cpus", metavar="N", help="CPUs fitted.")] = None,
    cpu: Annotated[str | None, typer.Option("--cpu", metavar="NAME", help="CPU fitted: E5-2680 v4.")] = None,
    cpu_tdp: Annotated[
        int | None, typer.Option("--cpu-tdp", metavar="W", min=1, max=2000, help="TDP of one CPU, instead of its name.")
    ] = None,
    psu: Annotated[str | None, typer.Option("--psu", metavar="NxW", help="Power supplies fitted: 2x1100.")] = None,
    riser: Annotated[list[str] | None, typer.Option("--riser", metavar="R=OPTION", help="Riser fitted.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="Other option fitted.")
    ] = None,
    input_voltage: Annotated[
        int | None, typer.Option("--input-voltage", metavar="V", min=90, max=400, help="Mains voltage.")
    ] = None,
    redundancy: Annotated[
        RedundancyWord | None, typer.Option("--redundancy", help="How many power supplies may fail.")
    ] = None,
    ram: Annotated[str | None, typer.Option("--ram", metavar="SIZE", help="Memory of the host: 256G.")] = None,
    ambient: Annotated[
        int | None, typer.Option("--ambient", metavar="C", min=-40, max=80, help="Temperature of the inlet air.")
    ] = None,
    use: Annotated[
        UseWord | None, typer.Option("--use", help="What the cards are for; infer asks for less than train.")
    ] = None,
    price: Annotated[
        list[str] | None, typer.Option("--price", metavar="ITEM=N", help="What one card or part costs: P40=200.")
    ] = None,
    seller: Annotated[bool, typer.Option("--seller", help="Print only the message to the seller.")] = False,
    cited: Annotated[
        bool, typer.Option("--sources", help="Number the sources in the text and list them at its end.")
    ] = False,
    sources: From = None,
    catalog: CatalogFolder = None,
    as_json: Json = False,
    markdown: Markdown = False,
    strict: Strict = False,
    lang: Lang = Language.en,
) -> int:
    """Will these cards fit this server, where, and what must be ordered with them?"""
    from gpucheck.fit.ask import Asked, answer

    asked = Asked(
        words=tuple(words or ()),
        model=model,
        gpus=tuple(gpu or ()),
        count=count,
        cpus=cpus,
        cpu_watts=cpu_tdp,
        psu=psu,
        risers=tuple(riser or ()),
        options=tuple(option or ()),
        input_volts=input_voltage,
        redundancy=redundancy.value if redundancy is not None else None,
        ambient_c=ambient,
        cpu=cpu,
        ram=ram,
        use=use.value if use is not None else None,
        prices=tuple(price or ()),
        sources=tuple(sources or ()),
    )
    advice = answer(asked, _catalog(catalog))
    if strict and advice.verdict == "fits-with-changes":
        advice = advice.model_copy(update={"exit_code": 1})
    if seller and not as_json:
        _show_message(advice)
    else:
        _show(advice, "cited_advice" if cited and not markdown else "advice", as_json=as_json, markdown=markdown)
    return advice.exit_code


def _show_message(advice: Advice) -> None:
    if advice.server is None:
        raise UsageError("there is one message for each model", input="--seller", hint="name the model with --model")
    if advice.seller_message is None:
        print(f"gpucheck: nothing is to be asked: {advice.headline}", file=sys.stderr)
    else:
        print(advice.seller_message)


@app.command(
    epilog="Example: gpucheck smoke --devices auto --expect-gpus 2. Several hosts:"
    " srun -K -N 2 --ntasks-per-node=1 gpucheck smoke --cluster slurm (-K, --kill-on-bad-exit: when a task"
    " ends, srun ends the rest), or on each host gpucheck smoke --cluster hosts.toml --rank 0 (the file has a table"
    " host with an address for each, as TOML)"
)
def smoke(
    devices: Annotated[
        str, typer.Option("--devices", metavar="auto|gpu|cpu:N", help="auto trains on CPUs only where PCI has no GPU.")
    ] = "auto",
    expect_gpus: Expect = None,
    strategy: Annotated[
        StrategyWord, typer.Option("--strategy", help="A copy of the net per card, one for all, or layers cut.")
    ] = StrategyWord.mirrored,
    mode: Annotated[UseWord, typer.Option("--mode", help="infer: forward passes only.")] = UseWord.train,
    split: Annotated[
        SplitWord, typer.Option("--split", help="auto: each card a share of the batch by its speed.")
    ] = SplitWord.even,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="slurm|tf_config|FILE", help="With other hosts: run this on each of them."),
    ] = None,
    rank: Annotated[
        int | None, typer.Option("--rank", metavar="N", min=0, help="Which host of FILE this is, from 0.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="N", min=1, max=65535, help="First port on each host under Slurm."),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", metavar="N", min=1, help="Training steps.")] = 10,
    batch: Annotated[
        int | None, typer.Option("--batch", metavar="N", min=1, help="Samples a step, all devices.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="S", min=1, max=86400, help="Seconds for all of it.")
    ] = 300,
    if_busy: Annotated[BusyWord, typer.Option("--if-busy", help="Cards that run other processes.")] = BusyWord.fail,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also each card alone, every pair, known sums and the cards' memory.")
    ] = False,
    soak: Annotated[
        float, typer.Option("--soak", metavar="MINUTES", min=0, max=10080, help="Repeat it under load for so long.")
    ] = 0,
    last: Annotated[
        bool, typer.Option("--last", help="Train nothing: how the last training ended, also after a crash.")
    ] = False,
    junit: Annotated[
        str | None, typer.Option("--junit", metavar="FILE", help="Write a JUnit file too: one test per card, and more.")
    ] = None,
    as_json: Json = False,
    markdown: Markdown = False,
    strict: Strict = False,
    lang: Lang = Language.en,
) -> int:
    """A short training that proves that every card is recognised and used."""
    from gpucheck.api import last_smoke
    from gpucheck.api import smoke as train
    from gpucheck.output import check_writable, replace_file

    if last:
        if junit is not None or expect_gpus is not None or cluster is not None or deep or soak:
            raise UsageError("it trains nothing", input="--last", hint="use it with --json, --markdown or alone")
        report = last_smoke()
        _show(report, "smoke", as_json=as_json, markdown=markdown)
        return report.exit_code
    if junit is not None:
        check_writable(junit)
    with _progress() as progress:
        report = train(
            devices,
            steps=steps,
            global_batch=batch,
            strategy=strategy.value,
            mode=mode.value,
            split=split.value,
            cluster=cluster,
            rank=rank,
            port=port,
            announce=lambda line: print(line, file=sys.stderr, flush=True),
            deep=deep,
            soak_minutes=soak,
            timeout=timeout,
            if_busy=if_busy.value,
            expect_gpus=expect_gpus,
            progress=progress,
        )
    if strict and report.exit_code == 0 and any(finding.severity == "warning" for finding in report.findings):
        report = report.model_copy(update={"exit_code": 1})
    if junit is not None:
        from gpucheck.render.junit import smoke as tests

        replace_file(junit, tests(report))
    _show(report, "smoke", as_json=as_json, markdown=markdown)
    return report.exit_code


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None] | None]:
    """A bar on standard error while that is a terminal; None otherwise."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("smoke", total=None)
        yield lambda step, total, phase: bar.update(task, completed=step, total=total, description=phase)


@app.command(epilog="Example: gpucheck explain bar-unassigned")
def explain(
    name: Annotated[str, typer.Argument(metavar="CODE", help="Name or code of a finding, as probe prints it.")],
    as_json: Json = False,
    lang: Lang = Language.en,
) -> int:
    """What a finding means, how it is known, and what to do."""
    from gpucheck.explain import explain as look_up

    found = look_up(name)
    if as_json:
        _print_listing("explain", found.summary, **found.model_dump())
    else:
        from gpucheck.render import text

        text.explanation(found)
    return 0


@app.command(epilog="Example: gpucheck capture machine.json")
def capture(
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="Where to write it; - is standard output.")] = None,
    script: Annotated[bool, typer.Option("--script", help="Print a shell script for hosts without Python.")] = False,
    redact: Annotated[
        bool, typer.Option("--redact/--no-redact", help="Replace serial numbers, names, addresses.")
    ] = True,
    ipmi: Ipmi = False,
    bmc: Bmc = None,
    bmc_auth: BmcAuth = None,
    bmc_ca: BmcCa = None,
    bmc_insecure: BmcInsecure = False,
    bmc_timeout: BmcTimeout = 60,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="S", min=0.1, max=86400, help="Seconds that NVML may take.")
    ] = 10,
    as_json: Json = False,
    lang: Lang = Language.en,
) -> int:
    """Write what probe reads into one file, which probe --from replays anywhere."""
    if script:
        from gpucheck.capture_script import script_text

        if file in (None, "-"):
            sys.stdout.write(script_text())
        else:
            from gpucheck.recording import write_text

            write_text(str(file), script_text(), force=force)
        return 0
    if file is None:
        raise UsageError("no file is named", input="capture", hint="gpucheck capture machine.json")
    from gpucheck.recording import capture_to

    access = _bmc_access(bmc, bmc_auth, bmc_ca, bmc_insecure, bmc_timeout)
    capture_to(file, redact=redact, ask_ipmi=ipmi, timeout=timeout, force=force, bmc=access)
    if as_json and file != "-":
        _print_listing("capture-written", f"Written: {file}.", file=file)
    return 0


@catalog_app.command("list", epilog="Example: gpucheck catalog list --json")
def catalog_list(catalog: CatalogFolder = None, as_json: Json = False, lang: Lang = Language.en) -> int:
    """Every server model and card, with the names it answers to."""
    known = _catalog(catalog)
    servers = [{"id": id, "names": list(raw["names"])} for id, raw in sorted(known.servers.items())]
    cards = [{"id": id, "names": [raw["name"], *raw["names"]]} for id, raw in sorted(known.cards.items())]
    if as_json:
        headline = f"{len(servers)} server models and {len(cards)} cards."
        _print_listing("catalog-list", headline, servers=servers, gpus=cards)
    else:
        from gpucheck.render import text

        text.names(servers, cards)
    return 0


@catalog_app.command("show", epilog="Example: gpucheck catalog show R730")
def catalog_show(
    name: Annotated[str, typer.Argument(help="Name of a server or card.")],
    catalog: CatalogFolder = None,
    as_json: Json = False,
    lang: Lang = Language.en,
) -> int:
    """All that the catalog says of one server or card, with sources."""
    known = _catalog(catalog)
    try:
        entries: list[Any] = [known.server(id) for id in known.find_servers(name)]
    except UsageError as no_server:
        try:
            entries = [known.card(id) for id in dict.fromkeys(match.card for match in known.find_cards(name))]
        except UsageError:
            raise UsageError("no such server or card in the catalog", input=name, hint=no_server.hint) from None
    documents = [entry.model_dump(mode="json", exclude_defaults=True) for entry in entries]
    if as_json:
        _print_listing("catalog-show", f"{len(documents)} entries for {name}.", entries=documents)
    else:
        from gpucheck.render import text

        text.entries(documents)
    return 0


@catalog_app.command("validate", epilog="Example: gpucheck catalog validate --catalog ./my-entries")
def catalog_validate(catalog: CatalogFolder = None, as_json: Json = False, lang: Lang = Language.en) -> int:
    """Check the form of every entry, its sources and its cross-references."""
    from gpucheck.catalog_check import faults

    found = faults(_catalog(catalog))
    if as_json:
        _print_listing(
            "catalog-validate",
            f"{len(found)} faults.",
            verdict="faults" if found else "ok",
            exit_code=1 if found else 0,
            faults=[{"entry": id, "fault": fault} for id, fault in found],
        )
    else:
        print("\n".join(f"{id}: {fault}" for id, fault in found) or "No fault found.")
    return 1 if found else 0
