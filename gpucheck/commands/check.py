"""``gpucheck check``: the gate for CI and monitoring."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer

from gpucheck.cli import (
    CatalogFolder,
    Expect,
    From,
    Ipmi,
    Json,
    Lang,
    Language,
    Markdown,
    Strict,
    _progress,
    _show,
    app,
)
from gpucheck.errors import NotCheckable, UsageError
from gpucheck.text import say

if TYPE_CHECKING:
    from gpucheck.checking import CheckReport

PolicyFile = Annotated[
    str | None,
    typer.Option("--policy", metavar="FILE", help="What the machine should be; gpucheck.toml here, if it is there."),
]


@app.command(epilog="Example: gpucheck check --expect-gpus 4 --junit report.xml")
def check(
    policy: PolicyFile = None,
    init: Annotated[bool, typer.Option("--init", help="Write the policy that this machine, as it is, meets.")] = False,
    force: Annotated[bool, typer.Option("--force", help="With --init: overwrite a file that is there.")] = False,
    expect_gpus: Expect = None,
    no_smoke: Annotated[bool, typer.Option("--no-smoke", help="Leave the training out.")] = False,
    junit: Annotated[str | None, typer.Option("--junit", metavar="FILE", help="Also write JUnit XML.")] = None,
    prometheus: Annotated[
        str | None, typer.Option("--prometheus", metavar="FILE", help="Also write metrics for node_exporter: X.prom.")
    ] = None,
    github: Annotated[
        bool, typer.Option("--github", help="Also write annotations and the step summary of GitHub Actions.")
    ] = False,
    sources: From = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="S", min=0.1, max=86400, help="Seconds that NVML may take.")
    ] = 10,
    ipmi: Ipmi = False,
    catalog: CatalogFolder = None,
    as_json: Json = False,
    markdown: Markdown = False,
    strict: Strict = False,
    lang: Lang = Language.en,
) -> int:
    """Probe, training and policy: is this machine what it should be? 1: drain it. 3: try the job elsewhere."""
    from gpucheck.catalog import load
    from gpucheck.output import check_writable, replace_file

    if not sources and not sys.platform.startswith("linux"):
        raise NotCheckable("hardware can be read on Linux only", hint="give a capture or a dump with --from")
    if init:
        return _init(policy, sources or [], force=force, timeout=timeout, ipmi=ipmi, catalog=catalog, as_json=as_json)
    if force:
        raise UsageError("it has no meaning without --init", input="--force", hint="add --init")
    for path in (junit, prometheus):
        if path is not None:
            check_writable(path)
    if junit is not None and prometheus is not None and os.path.realpath(junit) == os.path.realpath(prometheus):
        raise UsageError("--junit and --prometheus name the same file", input=junit, hint="name two files")
    from gpucheck.checking import check as judge

    with _progress() as progress:
        report = judge(
            sources or (),
            policy=policy,
            expect_gpus=expect_gpus,
            train=not no_smoke,
            strict=strict,
            timeout=timeout,
            ask_ipmi=ipmi,
            catalog=load(catalog),
            progress=progress,
        )
    if github:
        _show_on_github(report, as_json=as_json, markdown=markdown)
    else:
        _show(report, "check", as_json=as_json, markdown=markdown)
    unwritten = False
    for path, form in ((junit, "junit"), (prometheus, "prometheus")):
        if path is None:
            continue
        try:
            replace_file(path, import_module(f"gpucheck.render.{form}").check(report))
        except UsageError as error:  # such as a disk that is full by now: the verdict matters more
            print(f"gpucheck: {error}", file=sys.stderr)
            unwritten = True
    return report.exit_code or (2 if unwritten else 0)


def _init(
    path: str | None,
    sources: list[str],
    *,
    force: bool,
    timeout: float,
    ipmi: bool,
    catalog: str | None,
    as_json: bool,
) -> int:
    """Write the policy; 0, as nothing is judged."""
    from gpucheck.catalog import load
    from gpucheck.cli import _print_listing
    from gpucheck.output import check_writable, replace_file
    from gpucheck.policy import FILE
    from gpucheck.policy_init import policy_text, usable_gpus
    from gpucheck.probing import probe

    path = path or FILE
    if os.path.lexists(path) and not force:
        raise UsageError("it is there already", input=path, hint="name a new file, or give --force to replace it")
    check_writable(path)
    report = probe(sources, timeout=timeout, ask_ipmi=ipmi, catalog=load(catalog))
    if report.machine.gpus is None:
        fault = say("no policy is written, as no list of cards was read: {headline}", headline=report.headline)
        raise NotCheckable(fault, hint="look with gpucheck probe first")
    replace_file(path, policy_text(report))
    written = say("Written: {path}. Read it, then run gpucheck check.", path=path)
    if not usable_gpus(report):
        warned = say("It asks for no GPU, because none that can be used was found.")
        written = say("{written} {warned}", written=written, warned=warned)
    if as_json:
        _print_listing("policy-written", written, file=path)
    else:
        print(written)
    return 0


def _show_on_github(report: CheckReport, *, as_json: bool, markdown: bool) -> None:
    """The answer, with no commands to the runner in it; then the annotations; and the page of the step.

    With ``--json`` standard output stays one document: the runner reads standard error too.
    """
    from secrets import token_hex

    from gpucheck.render import github
    from gpucheck.render.markdown import check as page

    if as_json:
        _show(report, "check", as_json=True, markdown=False)
    else:
        token = f"gpucheck-{token_hex(16)}"
        print(f"::stop-commands::{token}")
        _show(report, "check", as_json=False, markdown=markdown)
        print(f"::{token}::")
    sys.stdout.flush()
    print(github.commands(report), end="", file=sys.stderr if as_json else sys.stdout)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return
    try:
        with open(summary, "a", encoding="utf-8") as file:
            file.write(f"## gpucheck\n\n{page(report)}\n\n")
    except OSError as error:  # the verdict matters more than the page
        print(f"gpucheck: {summary}: the step summary cannot be written: {error.strerror}", file=sys.stderr)
