"""Server-sent events: their form, and that one event is neither cut nor held back."""

from __future__ import annotations

from mosaic_tasks.gateway.readers import _SENT_BYTES, _gathered, frame


def test_a_frame_is_one_event_whatever_its_data_hold() -> None:
    made = frame("text", {"value": "a\nb\r\n\ndata: c"}, event_id="1-0")
    assert made == b'id: 1-0\nevent: text\ndata: {"value":"a\\nb\\r\\n\\ndata: c"}\n\n'
    assert frame("over", {}).startswith(b"event: over\n")


def test_short_frames_go_together_and_long_ones_alone() -> None:
    short, long = b"x" * 100, b"y" * (_SENT_BYTES + 1)
    assert list(_gathered([short] * 3)) == [short * 3]
    assert list(_gathered([short, long, short])) == [short, long, short]
    many = list(_gathered([short] * 2_000))
    assert b"".join(many) == short * 2_000
    assert max(map(len, many)) <= _SENT_BYTES
