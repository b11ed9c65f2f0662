"""``gpucheck fleet``: options and exit codes of its commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated

import typer

from gpucheck.cli import CatalogFolder, Json, Lang, Language, Markdown, Strict, app
from gpucheck.errors import NotCheckable, UsageError

fleet_app = typer.Typer(help="Many machines: capture each into a folder, judge the folder.", no_args_is_help=True)
app.add_typer(fleet_app, name="fleet")

Folder = Annotated[str, typer.Argument(metavar="DIR", help="Folder with a capture of each host.")]


class Way(StrEnum):
    """How hosts are reached, for messages."""

    ssh = "--ssh"
    slurm = "--slurm"
    local = "--local"


@fleet_app.command("collect", epilog="Example: gpucheck fleet collect captures --ssh hosts.txt --parallel 32")
def collect(
    folder: Folder,
    ssh: Annotated[
        str | None,
        typer.Option(
            "--ssh", metavar="FILE", help="Hosts by SSH, one a line: host, user@host, host:port, [IPv6]:port."
        ),
    ] = None,
    slurm: Annotated[
        bool,
        typer.Option("--slurm", help="Every node of this Slurm that is free now; others are told, not waited for."),
    ] = False,
    local: Annotated[bool, typer.Option("--local", help="This machine.")] = False,
    parallel: Annotated[
        int, typer.Option("--parallel", metavar="N", min=1, max=1024, help="Hosts that are asked at once.")
    ] = 16,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="S", min=1, max=86400, help="Seconds that one host may take.")
    ] = 120,
    known_hosts: Annotated[
        str | None,
        typer.Option("--known-hosts", metavar="FILE", help="Host keys to trust, instead of ~/.ssh/known_hosts."),
    ] = None,
    identity: Annotated[
        str | None, typer.Option("--identity", metavar="FILE", help="Private key to log in with.")
    ] = None,
    srun: Annotated[
        str | None,
        typer.Option("--srun", metavar="OPTIONS", help="More options for srun: '--account=it --gres=gpu:2'."),
    ] = None,
    sudo: Annotated[
        bool, typer.Option("--sudo", help="Read as root: sudo -n on the host, which must ask no password.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew, also where the last run was broken off.")] = False,
    as_json: Json = False,
    lang: Lang = Language.en,
) -> int:
    """Capture every host, agentless: nothing is installed on it, and Python need not be there."""
    from gpucheck.fleet import collect as fleet

    ways = [way for way, given in ((Way.ssh, ssh is not None), (Way.slurm, slurm), (Way.local, local)) if given]
    if len(ways) != 1:
        hint = "--ssh FILE, --slurm or --local"
        raise UsageError("one way to the hosts is to be named", input=" ".join(ways) or "fleet collect", hint=hint)
    for option, value, way in (
        ("--known-hosts", known_hosts, Way.ssh),
        ("--identity", identity, Way.ssh),
        ("--srun", srun, Way.slurm),
    ):
        if value is not None and ways[0] is not way:
            raise UsageError(f"it has no meaning without {way}", input=option, hint="leave it out")
    if not sys.platform.startswith("linux"):
        raise NotCheckable("captures are collected on Linux only", hint="report runs everywhere")
    if ssh is not None:
        plan = fleet.by_ssh(ssh, known_hosts=known_hosts, identity=identity, sudo=sudo)
    elif slurm:
        plan = fleet.by_slurm(timeout=timeout, sudo=sudo, more=srun)
    else:
        plan = fleet.by_itself(sudo=sudo)
    with _progress("collect") as progress:
        result = fleet.collect(folder, plan, parallel=parallel, timeout=timeout, fresh=fresh, progress=progress)
    if as_json:
        print(result.model_dump_json(by_alias=True, indent=2))
    else:
        from gpucheck.render import fleet as render

        render.collected(result)
    return result.exit_code


@fleet_app.command("report", epilog="Example: gpucheck fleet report captures --room P40 --csv fleet.csv")
def report(
    folder: Folder,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="DIR", help="Compare with this folder, instead of each host's run before."),
    ] = None,
    room: Annotated[
        str | None, typer.Option("--room", metavar="GPU", help="Tell how many more of this card each host takes.")
    ] = None,
    csv: Annotated[
        str | None, typer.Option("--csv", metavar="FILE", help="Also write a table; - prints it and nothing else.")
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", metavar="N", min=0, max=256, help="Processes that judge; 0: one for each CPU.")
    ] = 1,
    catalog: CatalogFolder = None,
    as_json: Json = False,
    markdown: Markdown = False,
    strict: Strict = False,
    lang: Lang = Language.en,
) -> int:
    """Which hosts have a problem, lost a card, differ from their twins, or have room for more?"""
    from gpucheck.fleet.report import report as judge
    from gpucheck.output import check_writable, replace_file

    if (as_json + markdown + (csv == "-")) > 1:
        raise UsageError("one form can be printed at a time", input="--json", hint="write the table: --csv FILE")
    if csv not in (None, "-"):
        check_writable(csv)
    with _progress("report") as progress:
        counted = None if progress is None else lambda done, total: progress(done, total, "")
        merged = judge(
            folder,
            since=since,
            room=room,
            catalog=catalog,
            jobs=jobs or os.cpu_count() or 1,
            strict=strict,
            progress=counted,
        )
    from gpucheck.render import fleet as render

    if csv == "-":
        sys.stdout.writelines(render.as_csv(merged))
        return merged.head.exit_code
    if csv is not None:
        replace_file(csv, render.as_csv(merged))
    if as_json:
        sys.stdout.writelines(render.as_json(merged))
    elif markdown:
        sys.stdout.writelines(render.as_markdown(merged))
    else:
        render.text(merged)
    return merged.head.exit_code


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int, str], None] | None]:
    """A bar on standard error while that is a terminal; None otherwise."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from gpucheck.text import clean, shorten

    columns = (
        TextColumn(name),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True, markup=False), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, host: bar.update(
            task, completed=done, total=total, description=shorten(clean(host), 40).replace("[", "(")
        )
