"""Tools whose outputs are shown in reports."""

from __future__ import annotations

from typing import Any

NASTY = (
    '<script>document.title = "owned"</script><img src="http://127.0.0.1:9/x" onerror="alert(1)"> '
    "[x](javascript:alert(1))"
)


def told(topic: str) -> Any:
    """A report on a topic; of some topics something else."""
    if topic == "bad":
        raise ValueError("the topic <b>bad</b> is not known")
    if topic == "object":
        return {"rows": [1, NASTY]}
    return {
        "title": f"Report: {topic}",
        "markdown": f"# Report: {topic}\n\n{NASTY}\n\n| a | n |\n|---|--:|\n| x | 1 |\n",
    }
