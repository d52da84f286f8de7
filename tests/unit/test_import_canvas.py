"""What `mosaic import-canvas` writes, and what it tells."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mosaic_queues.errors import DefinitionError
from mosaic_tasks import Workflow
from mosaic_tasks.adopting.importing import import_canvas, told
from mosaic_tasks.adopting.tools import by_position, chunked, listed

HERE = "tests.integration.canvas_app"
TASKS = "tests.integration.canvas_app"


def nodes(name: str) -> dict[str, dict[str, Any]]:
    """The nodes of an imported canvas, as its file has them."""
    text = import_canvas(f"{HERE}:{name}").text
    return Workflow.from_yaml(text).model_dump(by_alias=True, exclude_defaults=True)["nodes"]


def test_a_chain_becomes_references() -> None:
    assert nodes("steps") == {
        "add": {"task": f"{TASKS}.add", "with": {"x": 1, "y": 2}},
        "add_2": {"task": f"{TASKS}.add", "with": {"x": "${add}", "y": 3}},
        "scaled": {"task": f"{TASKS}.scaled", "with": {"x": "${add_2}", "by": 10}},
    }


def test_a_group_is_upgraded_to_a_chord_and_ends_in_a_list() -> None:
    found = nodes("upgraded")
    assert found["folded"]["with"] == {"numbers": ["${add}", "${add_2}"]}
    assert found["results"]["with"] == {"values": ["${scaled}", "${scaled_2}"]}


def test_a_group_of_one_in_a_chain_is_no_group() -> None:
    assert nodes("of_one")["add_2"]["with"] == {"x": "${add}", "y": 3}


def test_immutable_signatures_wait_and_read_nothing() -> None:
    found = nodes("immutable")
    assert found["answer"] == {"task": f"{TASKS}.answer", "after": ("add",)}
    assert found["answer_2"] == {"task": f"{TASKS}.answer", "after": ("add_2", "add_3")}


def test_many_alike_are_one_node() -> None:
    imported = import_canvas(f"{HERE}:alike")
    assert imported.workflow.inputs["add_items"]["default"] == [[number, number**2] for number in range(6)]
    (node,) = nodes("alike").values()
    assert (node["for_each"], node["with"]) == ("${inputs.add_items}", {"x": "${item[0]}", "y": "${item[1]}"})


def test_tasks_are_in_the_queues_that_the_app_sends_them_to() -> None:
    found = nodes("elsewhere")
    assert [node.get("queue") for node in found.values()] == ["canvas.other", "canvas.other", None]
    assert import_canvas(f"{HERE}:elsewhere").workflow.defaults.queue == "canvas"


def test_arguments_without_names_are_given_by_position() -> None:
    found = nodes("by_position")["product_2"]
    assert found["tool"] == "mosaic_tasks.adopting.tools:by_position"
    assert found["with"] == {"task": f"{TASKS}.product", "args": ["${product}", 4]}


def test_a_task_s_own_limits_and_retries_are_kept() -> None:
    found = nodes("lossy")["fragile"]
    assert found["timeout"] == 20
    assert found["retry"] == {"attempts": 5, "delay": 2.0, "max_delay": 600.0}


def test_a_text_that_looks_like_a_reference_stays_a_text() -> None:
    assert nodes("lossy")["noted"]["with"]["text"] == "$${not} a reference"


def test_what_is_not_kept_is_told_in_the_file() -> None:
    imported = import_canvas(f"{HERE}:lossy")
    whole = "\n".join(told(note) for note in imported.notes)
    for what in (
        "add: countdown=10: ", "add: expires=60: ", "add: priority=3: ", "add: retry=False: ",
        "add: link_error=tests.integration.canvas_app.noted: ", "noted: rate_limit='10/m': ", "noted: ignore_result: ",
        "noted: on_success of its class: ", "fragile: autoretry_for=OSError only: ", "fragile: self.update_state(): ",
        "fragile: self.request: ", "replaced: self.replace(): ",
    ):  # fmt: skip
        assert what in whole, what
    comments = " ".join(line.lstrip("# ") for line in imported.text.splitlines() if line.startswith("#"))
    for note in imported.notes:
        assert " ".join(told(note).split()) in comments
    assert len(imported.notes) == 12


def test_nothing_is_told_where_all_is_kept() -> None:
    assert not import_canvas(f"{HERE}:nested").notes
    assert not import_canvas(f"{HERE}:bound").notes


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("unknown", "knows no task 'elsewhere.task'; import the module that defines it"),
        ("too_many", "canvas_app.add: too many positional arguments"),
        ("unwritable", "is a object, which a workflow file cannot hold"),
        ("nothing", "is a str, which cannot be called"),
        ("needy", "was called for its canvas, without arguments, and raised TypeError"),
        ("absent", "has no 'absent'"),
        ("QUEUE", "is a str, which cannot be called"),
    ],
)
def test_what_is_no_canvas_is_told(name: str, problem: str) -> None:
    with pytest.raises(DefinitionError) as error:
        import_canvas(f"{HERE}:{name}")
    assert problem in str(error.value)


def test_a_module_that_cannot_be_imported_is_told() -> None:
    with pytest.raises(DefinitionError, match=r"cannot import 'no\.such\.module'"):
        import_canvas("no.such.module:canvas")


def test_the_command_tells_on_stderr_and_writes_to_stdout(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mosaic_tasks.cli", "import-canvas"]
    done = subprocess.run([*command, f"{HERE}:lossy"], capture_output=True, text=True, check=True)
    assert done.stderr.count("not kept: ") == 12
    assert Workflow.from_yaml(done.stdout).name == "lossy"
    done = subprocess.run([*command, f"{HERE}:lossy", "--json"], capture_output=True, text=True, check=True)
    printed = json.loads(done.stdout)
    assert (printed["workflow"]["name"], len(printed["not_kept"]), done.stderr) == ("lossy", 12, "")
    assert printed["not_kept"][0].keys() == {"subject", "what", "instead"}
    place = tmp_path / "no" / "folder.yaml"
    done = subprocess.run(
        [*command, f"{HERE}:one", "--output", str(place), "--name", "sums"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "cannot write the workflow to" in done.stderr) == (2, True)


def test_the_tools_of_imported_workflows() -> None:
    from tests.integration.canvas_app import app

    assert listed([1, 2]) == [1, 2]
    assert chunked([1, 2, 3], 2) == [[1, 2], [3]]
    with app:
        app.set_current()
        assert by_position(f"{TASKS}.product", [2, 3, 4]) == 24
