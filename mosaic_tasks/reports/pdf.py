"""A page as PDF, by WeasyPrint, which may fetch nothing: neither from the network nor from this machine."""

from __future__ import annotations

from typing import Any

from mosaic_queues.errors import ConfigurationError

_INSTALL = "pip install 'mosaic-tasks[reports]'"
_PACKAGES = "apt-get install libpango-1.0-0 libpangoft2-1.0-0 libharfbuzz-subset0, or brew install pango"


def to_pdf(html: str) -> bytes:
    """The same bytes for the same page.

    Raises:
        ConfigurationError: WeasyPrint or its libraries are missing.
    """
    weasyprint = renderer()
    from weasyprint.urls import URLFetcher  # type: ignore[import-untyped]

    page = weasyprint.HTML(string=html, url_fetcher=URLFetcher(allowed_protocols=()))
    made: bytes = page.write_pdf()  # its identifier is made of its content, its dates stand in the page
    return made


def renderer() -> Any:
    """WeasyPrint.

    Raises:
        ConfigurationError: it, or a library that it needs, is missing.
    """
    try:
        import weasyprint  # type: ignore[import-untyped]
    except ImportError:
        raise ConfigurationError(f"PDF needs WeasyPrint; install it with: {_INSTALL}") from None
    except OSError as error:
        library = str(error).partition("\n")[0]
        raise ConfigurationError(
            f"PDF needs system libraries that WeasyPrint does not find ({library}); install them with: {_PACKAGES}"
        ) from None
    return weasyprint
