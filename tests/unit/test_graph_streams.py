"""A workflow with streams can be drawn without importing its tools."""

from mosaic_tasks import Workflow, compile_workflow


def test_edges_of_tools_that_are_not_imported_are_taken_as_they_are() -> None:
    workflow = Workflow.from_data(
        {
            "name": "streams",
            "nodes": {
                "numbers": {"tool": "tests.integration.stream_tools:numbers", "with": {"n": 3}},
                "totals": {
                    "tool": "tests.integration.stream_tools:totals",
                    "with": {"values": "${numbers}"},
                    "edges": {"numbers": "stream"},
                },
            },
            "output": "totals",
        }
    )
    plan = compile_workflow(workflow, import_tools=False)
    assert [node.is_mailbox for node in plan.nodes] == [False, True]
