"""How failures are told."""

from __future__ import annotations

import pytest

from mosaic_queues.transitions import Claim
from mosaic_tasks.definition.plan import NodePlan, decode_ref
from mosaic_tasks.execution.outcomes import failure
from mosaic_tasks.execution.prepared import PreparedNode


def test_a_failure_is_told_with_the_place_in_the_tool_not_in_this_package() -> None:
    with pytest.raises(ValueError, match="unpack") as caught:
        decode_ref({"$ref": []})
    told = failure(PreparedNode(0, NodePlan("n", "tool", "q"), str), Claim("0", 1, 0, 0), caught.value)
    assert told.error.startswith("node 'n': ToolError: ValueError: ")
    assert told.error.endswith(f"of {__file__})")
