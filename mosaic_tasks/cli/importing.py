"""The command `import-canvas`."""

from __future__ import annotations

from typing import Annotated

import typer

from mosaic_tasks.cli.options import JsonOption, OutputOption
from mosaic_tasks.cli.output import print_json


def import_canvas(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:SIGNATURE",
            help="A signature, chain, group or chord, or a function that returns one.",
        ),
    ],
    output: OutputOption = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the workflow. Default: that of the signature.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a Celery canvas as a workflow file.

    Its tasks become nodes, in the queues that the app sends them to; what partial signatures lack becomes inputs. What
    is not kept, such as a countdown, is told in the file and on stderr, with what to do instead. Importing runs the
    module and, where one is named, the function; no task.

    \b
    Examples:
      mosaic import-canvas proj.canvases:report
      mosaic import-canvas proj.canvases:report --output imported.yaml
      mosaic import-canvas proj.canvases:report --json    # the workflow as data, and what is not kept
    """
    from mosaic_queues.errors import InputError
    from mosaic_tasks.adopting.importing import import_canvas as imported_from
    from mosaic_tasks.adopting.importing import told

    imported = imported_from(target, name=name)
    if as_json:
        data = imported.workflow.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        print_json({"workflow": data, "not_kept": imported.notes})
    else:
        for note in imported.notes:
            typer.echo(f"{target}: not kept: {told(note)}", err=True)
    if output is None:
        typer.echo("" if as_json else imported.text, nl=False)
        return
    try:
        output.write_text(imported.text, "utf-8")
    except OSError as error:
        raise InputError(f"cannot write the workflow to {str(output)!r}: {error.strerror}") from error
    typer.echo(
        f"{output}: workflow {imported.workflow.name!r}; check it, then: mosaic run {output}", err=True
    )
