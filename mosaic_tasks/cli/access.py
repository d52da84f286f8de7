"""The commands for API keys and for the audit log: keys add, list, rotate, revoke, audit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from mosaic_tasks.cli.options import JsonOption, lifetime, utf8
from mosaic_tasks.cli.output import console, print_json, print_json_line, table

if TYPE_CHECKING:
    from mosaic_tasks.access.audit import Entry
    from mosaic_tasks.access.keyring import ApiKey, KeyRing

T = TypeVar("T")

keys = typer.Typer(
    name="keys",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="API keys of the gateway, and its audit log.",
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", callback=utf8, help="Of a key.")]
ExpiresOption = Annotated[
    float | None,
    typer.Option("--expires", metavar="DURATION", parser=lifetime, help="It is valid for so long: 12h, 90d."),
]


@keys.command()
def add(
    name: NameArgument,
    scope: Annotated[
        list[str],
        typer.Option(metavar="SCOPE", help="submit, read, cancel, score or operate; give all that it needs."),
    ],
    tenant: Annotated[
        str,
        typer.Option(metavar="NAME", callback=utf8, help="On whose account; default: that without a name."),
    ] = "",
    expires: ExpiresOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key and show it, this once. From the first key on the gateway lets nobody in without.

    \b
    Scopes:
      submit    start runs
      read      see the runs of its tenant
      cancel    end them, and run them again
      score     say how right answers were
      operate   see the runs of all tenants, the workers and the metrics

    \b
    Examples:
      mosaic keys add ci --tenant acme --scope submit --scope read --expires 90d
      KEY=$(mosaic keys add dashboard --scope read --json | jq -r .key)
    """
    made = _change(
        "key.add", name, lambda ring: ring.add(name, tenant=tenant, scopes=scope, lifetime_s=expires)
    )
    _show(name, made, as_json=as_json)


@keys.command("list")
def list_keys(as_json: JsonOption = False) -> None:
    """List the keys, without what is secret of them. USED is right to within a minute or so.

    \b
    Examples:
      mosaic keys list
      mosaic keys list --json | jq -r '.[] | select(.used_ms == 0) | .name'
    """
    found = _with_ring(lambda ring: ring.all())
    if as_json:
        print_json(found)
    elif not found:
        typer.echo("there are no keys; make one: mosaic keys add NAME --scope submit --scope read")
    else:
        rows = table("NAME", "ID", "TENANT", "SCOPES", "MADE", "EXPIRES", "USED")
        for key in found:
            rows.add_row(*_row(key))
        console(unknown_width=200).print(rows)


@keys.command()
def rotate(
    name: NameArgument,
    grace: Annotated[
        float,
        typer.Option(
            "--grace",
            metavar="DURATION",
            parser=lifetime,
            show_default="1d",
            help="The old one stays valid for so long.",
        ),
    ] = 86_400.0,
    expires: ExpiresOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replace a key by a new one of the same tenant and scopes, and show it, this once.

    The old one stays valid for the grace, so that whoever uses it has time to change. If the new one is lost, rotate
    again. A key that others may have seen is to be replaced with --grace 0.

    \b
    Examples:
      mosaic keys rotate ci
      mosaic keys rotate ci --grace 0 --expires 30d
    """
    made = _change("key.rotate", name, lambda ring: ring.rotate(name, grace_s=grace, lifetime_s=expires))
    _show(name, made, as_json=as_json)


@keys.command()
def revoke(name: NameArgument, as_json: JsonOption = False) -> None:
    """End a key at once, and the sessions that it opened.

    \b
    Example:
      mosaic keys revoke ci
    """
    ended = _change("key.revoke", name, lambda ring: ring.revoke(name))
    if as_json:
        print_json({"name": name, "revoked": ended})
    else:
        typer.echo(f"revoked: {name}")


@keys.command()
def audit(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    last: Annotated[
        int, typer.Option("--last", "-n", min=1, metavar="COUNT", help="So many entries, the newest.")
    ] = 50,
    as_json: JsonOption = False,
) -> None:
    """Show who did what to which run, when and from where, and what was refused. With --json a line for each.

    \b
    Examples:
      mosaic keys audit --last 20
      mosaic keys audit --follow --json | jq --unbuffered 'select(.outcome == "refused")'
    """
    from mosaic_tasks.access.audit import audit_of
    from mosaic_tasks.app import app

    log = audit_of(app)
    for entry in log.follow(last) if follow else log.last(last):
        if as_json:
            print_json_line(entry)
        else:
            typer.echo(_line(entry))


def _show(name: str, key: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, "key": key})
        return
    typer.echo(key)
    typer.echo(
        "next: keep it now, nobody can show it again; send it as the header Authorization: Bearer KEY\n"
        "gateways of this server let nobody in without a key from now on, also once all are revoked",
        err=True,
    )


def _row(key: ApiKey) -> tuple[str, ...]:
    name = key.name if key.is_current else f"{key.name} (replaced)"
    times = (_at(key.made_ms), _at(key.expires_ms), _at(key.used_ms))
    return name, key.id, key.tenant or "-", " ".join(key.scopes), *times


def _line(entry: Entry) -> str:
    who = entry.subject or "nobody"
    tenant = f" of {entry.tenant}" if entry.tenant else ""
    told = [entry.run, f"({entry.reason})" if entry.reason else ""]
    rest = " ".join(["", *filter(None, told)])
    return f"{_at(entry.at_ms)} {entry.address or '-'} {who}{tenant} {entry.outcome} {entry.action}{rest}"


def _at(at_ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds") if at_ms else "-"


def _change(action: str, name: str, act: Callable[[KeyRing], T]) -> T:
    """Acts on the keys, once that stands in the audit log."""
    from mosaic_tasks.access.audit import Deed, audit_of
    from mosaic_tasks.access.principal import Principal
    from mosaic_tasks.app import app

    who = Principal(subject=f"{_user()} (command line)")
    audit_of(app, is_logged=False).allowed(who, Deed(f"{action} {name}"))
    return _with_ring(act)


def _with_ring(act: Callable[[KeyRing], T]) -> T:
    from mosaic_tasks.access.gates import keys_of
    from mosaic_tasks.app import app

    return act(keys_of(app))


def _user() -> str:
    import getpass
    import os

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # as in a container, whose user has no name
        return f"uid {os.getuid()}"
