"""`python -m mosaic_tasks.cli` is the `mosaic` command."""

from mosaic_tasks.cli import main

main()
