"""What the figures of an annual report say about profit, debt and the means to pay."""

from __future__ import annotations

from collections.abc import Iterator

from financial_report.sections import LAST


def ratios(
    revenue: float,
    net_profit: float,
    total_assets: float,
    total_liabilities: float,
    equity: float,
    current_assets: float,
    current_liabilities: float,
) -> Iterator[str | None]:
    """A section with the ratios, as pieces of Markdown."""
    yield "| Ratio | Value | How it is computed |\n| --- | ---: | --- |"
    yield _row("Net margin", net_profit, revenue, "net profit by revenue")
    yield _row("Return on equity", net_profit, equity, "net profit by equity at the end of the year")
    yield _row("Return on assets", net_profit, total_assets, "net profit by total assets")
    yield _row("Equity ratio", equity, total_assets, "equity by total assets")
    yield _row("Debt to equity", total_liabilities, equity, "total liabilities by equity", percent=False)
    yield _row(
        "Current ratio", current_assets, current_liabilities, "current assets by liabilities", percent=False
    )
    difference = total_assets - total_liabilities - equity
    if abs(difference) > 0.005 * abs(total_assets):
        yield f"\n\nThe statement does not balance: assets exceed liabilities and equity by {difference:,.1f}."
    yield LAST


def _row(name: str, part: float, whole: float, how: str, *, percent: bool = True) -> str:
    if not whole:
        value = "not defined"
    else:
        value = f"{part / whole:.1%}" if percent else f"{part / whole:.2f}"
    return f"\n| {name} | {value} | {how} |"
