"""What can be wrong with a report's inputs; each message is a sentence for the person who asked for it.

ReportError (a ValueError)
 ├── RepositoryError   the repository, or what git says about it, is unusable
 ├── PeriodError       the period is not one
 └── TicketFileError   the ticket file is unusable
"""

from __future__ import annotations


class ReportError(ValueError):
    """The inputs do not allow a report."""


class RepositoryError(ReportError):
    """The repository, or what git says about it, is unusable."""


class PeriodError(ReportError):
    """The period is not one."""


class TicketFileError(ReportError):
    """The ticket file is unusable."""
