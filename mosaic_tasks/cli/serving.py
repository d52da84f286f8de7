"""The command that serves runs over HTTP: serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mosaic_queues.collector import end_loading
from mosaic_tasks.cli.options import JsonOption
from mosaic_tasks.cli.output import print_json_line

PORT = 8000


def serve(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Workflow files, and folders of them.")
    ],
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="0: any that is free.")] = PORT,
    require_key: Annotated[
        bool, typer.Option("--require-key", help="Let nobody in without a key, also from this machine.")
    ] = False,
    cors: Annotated[
        list[str] | None,
        typer.Option("--cors", metavar="ORIGIN", help="Pages from there may ask; may be repeated."),
    ] = None,
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host", metavar="NAME", help="A name by which it may be called, besides its own."
        ),
    ] = None,
    forwarded_allow_ips: Annotated[
        str, typer.Option(metavar="ADDRESSES", help="Proxies that are believed about who asks.")
    ] = "127.0.0.1",
    as_json: JsonOption = False,
) -> None:
    """Serve workflows over HTTP: start runs, stream what they say, chat with them, look at them; until Ctrl-C.

    Only the workflows that are named here can be started. It listens to this machine alone, and asks nobody who they
    are, until there is a key (`mosaic keys add`); at any other address it starts only where there is one. Encryption
    (TLS) is a proxy's. It says where it answers once it does; with --json as one line of JSON.

    \b
    Examples:
      mosaic serve examples/quiz --port 8000
      curl http://127.0.0.1:8000/v1/workflows
      mosaic serve report.yaml quiz.yaml --port 0 --json
    """
    from mosaic_tasks.access.extra import needs_gateway

    with needs_gateway():
        from mosaic_tasks.gateway.serving import gateway_at
    gateway = gateway_at(
        paths,
        host=host,
        port=port,
        require_key=require_key,
        origins=cors or (),
        allowed_hosts=allowed_hosts or (),
        forwarded_allow_ips=forwarded_allow_ips,
    )
    with gateway as (url, is_open, run):
        end_loading()
        run(lambda: _say(url, is_open=is_open, as_json=as_json))


def _say(url: str, *, is_open: bool, as_json: bool) -> None:
    if as_json:
        print_json_line({"url": url, "is_open": is_open})
        return
    typer.echo(url)
    if is_open:
        typer.echo(
            "nobody is asked who they are; mosaic keys add NAME --scope submit --scope read closes it for good",
            err=True,
        )
