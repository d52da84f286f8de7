"""What `mosaic metrics` tells of queues and groups, and what `mosaic probe` makes of reports."""

from __future__ import annotations

import math
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import cast
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from made_observers import Sums, observer
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from typer import BadParameter

from mosaic_queues.liveness import LiveProcess
from mosaic_queues.queue_ages import QueueAges
from mosaic_queues.transitions import LiveCall, Usage
from mosaic_queues.work import Work
from mosaic_routing.inventory import EngineReport, EngineState
from mosaic_tasks.cli.metrics import impatient, listening
from mosaic_tasks.cli.probing import not_ready
from mosaic_tasks.observability import figures
from mosaic_tasks.observability.exposition import exposition
from mosaic_tasks.observability.gathering import Figures, queues_of, served, together
from mosaic_tasks.observability.once import Shared
from mosaic_tasks.observability.tracing import Tracer

HOSTING = ("mosaic.gpu.m", "mosaic.l4.m", "mosaic.direct.w@h")


def process(*queues: str, name: str = "h/1/a") -> LiveProcess:
    return LiveProcess(name=name, host="h", pid=1, started_ms=0, queues=queues)


def engine(state: EngineState = "ready", phase: str = "") -> EngineReport:
    return EngineReport(
        holder="h/1/a",
        queues=HOSTING,
        engine="vllm",
        model='a "model"',
        fingerprint="f",
        gpu_class="l4",
        at_ms=1500,
        state=state,
        phase=phase,
    )


@contextmanager
def answering(read: Callable[[], Figures]) -> Iterator[str]:
    with listening("127.0.0.1", 0, read) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


FIGURES = Figures({"q": Work(3, 2)}, {"a.b": Work(3, 2)}, {"q": 1}, [engine()])


def test_the_queues_of_a_group_are_its_own_and_those_of_its_workers_alone() -> None:
    shared = HOSTING[:2]
    others = [process(*HOSTING), process("mosaic.cpu", "mosaic.direct.x@h"), process("mosaic.gpu.m")]
    assert queues_of(shared, others) == [*HOSTING]


def test_the_work_of_a_group_is_that_of_all_its_queues() -> None:
    work = {"a": Work(1, 2), "b": Work(10, 20)}
    assert together({"one": ["a", "b"], "two": ["a"], "none": []}, work) == {
        "one": Work(11, 22),
        "two": Work(1, 2),
        "none": Work(0, 0),
    }
    assert served([process("a", "b"), process("a"), process()]) == {"a": 2, "b": 1}


def test_figures_can_be_read_by_prometheus() -> None:
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(exposition(FIGURES))
        for sample in family.samples
    }
    assert samples["mosaic_queue_waiting", "q"] == 3
    assert samples["mosaic_queue_running", "q"] == 2
    assert samples["mosaic_group_work", "a.b"] == 5
    assert samples["mosaic_engine_reported_timestamp_seconds", 'a "model"', "l4", "h/1/a"] == 1.5


def test_a_page_that_is_none_is_not_found_and_a_server_that_is_away_is_told() -> None:
    def away() -> Figures:
        raise ConnectionError("no server")

    with answering(lambda: FIGURES) as root:
        for path in ("/", "/metrics/x", "/work", "/work/", "/work/none", "/work/a.b/c"):
            with pytest.raises(HTTPError, match="404"):
                urlopen(root + path)
        with urlopen(f"{root}/work/a.b?x=1") as answer:
            assert answer.read() == b'{"waiting":3,"running":2,"work":5}'
    with answering(away) as root, pytest.raises(HTTPError, match="503"):
        urlopen(f"{root}/metrics")


def test_many_who_ask_at_the_same_time_have_the_figures_read_by_one_at_a_time() -> None:
    reading, together_read = threading.Semaphore(1), threading.Event()

    def slow() -> Figures:
        if not reading.acquire(blocking=False):
            together_read.set()
            return FIGURES
        together_read.wait(0.1)
        reading.release()
        return FIGURES

    with answering(slow) as root, ThreadPoolExecutor(8) as several:
        pages = list(several.map(lambda _: urlopen(f"{root}/metrics"), range(8)))
    for page in pages:
        with page:
            assert b"mosaic_queue_waiting" in page.read()
    assert not together_read.is_set()


def test_an_error_is_told_to_who_waited_for_it_and_to_nobody_else() -> None:
    answers = iter([ConnectionError("no server"), FIGURES])

    def read() -> Figures:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with answering(read) as root:
        with pytest.raises(HTTPError, match="503"):
            urlopen(f"{root}/metrics")
        with urlopen(f"{root}/metrics") as answer:
            assert answer.status == 200


def test_who_asks_once_the_others_are_told_gets_something_newer(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, newer = count(), list[int]()
    shared, tell = Shared(lambda: next(numbers)), Future.set_result

    def told(coming: Future[int], number: int) -> None:
        tell(coming, number)
        if number == 0:
            newer.append(shared.get())

    monkeypatch.setattr(Future, "set_result", told)
    assert (shared.get(), newer) == (0, [1])


def test_who_hangs_up_before_the_answer_leaves_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    asked, gone = threading.Event(), threading.Event()

    def slow() -> Figures:
        asked.set()
        gone.wait(30)
        return FIGURES._replace(queues={"q" * 1_000_000: Work()})

    with answering(slow) as root:
        address = ("127.0.0.1", int(root.rpartition(":")[2]))
        with socket.create_connection(address) as client:
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            asked.wait(30)
            # A reset, not an end.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        (answers,) = [each for each in threading.enumerate() if "process_request" in each.name]
        gone.set()
        answers.join(30)
    assert capfd.readouterr().err == ""


def test_a_server_that_is_away_is_asked_no_more_than_twice_and_not_for_long() -> None:
    def hang_up_twice() -> None:
        for _ in range(2):
            away.accept()[0].close()

    with socket.create_server(("127.0.0.1", 0)) as away:
        patient = Redis(port=away.getsockname()[1], socket_timeout=60.0)
        with impatient(patient) as client:
            assert client.connection_pool.connection_kwargs["socket_timeout"] <= 3.0
            thread = threading.Thread(target=hang_up_twice)
            thread.start()
            with pytest.raises(RedisConnectionError):
                client.ping()
            thread.join()
            away.setblocking(False)
            with pytest.raises(BlockingIOError):
                away.accept()


def test_an_address_that_cannot_be_had_is_told() -> None:
    with (
        answering(lambda: FIGURES) as root,
        pytest.raises(BadParameter, match=r"cannot listen on 127\.0\.0\.1:"),
    ):
        listening("127.0.0.1", int(root.rpartition(":")[2]), lambda: FIGURES)


@pytest.mark.parametrize(
    ("here", "reports", "reason"),
    [
        ([], [], "no worker here takes calls"),
        ([process("mosaic.cpu")], [], ""),
        ([process(*HOSTING)], [], "the model of the queue 'mosaic.gpu.m' has not reported yet"),
        ([process(*HOSTING)], [engine()], ""),
        ([process(*HOSTING)], [engine("loading", "reading weights")], "is loading: reading weights"),
        ([process("mosaic.cpu", name="h/2/b")], [engine("loading")], ""),
    ],
)
def test_a_worker_is_ready_once_all_of_its_models_are(
    here: list[LiveProcess], reports: list[EngineReport], reason: str
) -> None:
    found = not_ready(here, reports)
    assert reason in found
    assert bool(reason) == bool(found)


# -- what processes count ----------------------------------------------------------------------------------------------


def samples_of(figures: Figures) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(exposition(figures))
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_what_was_counted_is_read_as_counters_and_histograms() -> None:
    sums = Sums()
    seen = observer(sums)
    for seconds in (0.0004, 0.3, 0.3, 4000.0):
        seen.tallies.observe(figures.CALLS, seconds, "tool", "done")
    seen.used(Usage("0", "openai:m", 30, 20, 0.5, cached_tokens=10))
    seen.used(Usage("1", "openai:m", 1, 2, None))
    seen.flush()
    found = samples_of(FIGURES._replace(tallies=sums.tallies()))
    at_most = {
        bound: found["mosaic_call_seconds_bucket", "tool", bound, "done"]
        for bound in ("0.001", "0.25", "0.5")
    }
    assert at_most == {"0.001": 1, "0.25": 1, "0.5": 3}
    assert found["mosaic_call_seconds_bucket", "tool", "+Inf", "done"] == 4
    assert found["mosaic_call_seconds_count", "tool", "done"] == 4
    assert found["mosaic_call_seconds_sum", "tool", "done"] == pytest.approx(4000.6004)
    assert found["mosaic_tokens_total", "input", "openai:m"] == 31
    assert found["mosaic_tokens_total", "cached", "openai:m"] == 10
    assert found["mosaic_cost_usd_total", "openai:m"] == 0.5


def test_a_figure_of_a_queue_without_calls_is_zero_and_nothing_is_told_where_nobody_sweeps() -> None:
    ages = QueueAges()
    ready = LiveCall("0", "ready", 0, 0, 0, "q", 1_000, "")
    ages.add([ready, ready._replace(at_ms=500), ready._replace(state="claimed", at_ms=2_000)], now_ms=3_000)
    found = samples_of(FIGURES._replace(queues={"q": Work(), "empty": Work()}, ages=ages))
    assert found["mosaic_queue_oldest_ready_seconds", "q"] == 2.5
    assert found["mosaic_queue_oldest_claim_seconds", "q"] == 1.0
    assert found["mosaic_queue_ready_calls", "q"] == 2
    assert found["mosaic_queue_oldest_ready_seconds", "empty"] == 0
    assert found["mosaic_queue_workers", "empty"] == 0
    assert (found["mosaic_sweeper_leads",], found["mosaic_runs_unfinished",]) == (1, 1)
    alone = samples_of(FIGURES)
    assert alone["mosaic_sweeper_leads",] == 0
    assert ("mosaic_queue_oldest_ready_seconds", "q") not in alone


def test_a_batch_that_could_not_be_sent_is_sent_again_as_it_was() -> None:
    class Away(Sums):
        fails = True

        def eval(self, *words: object) -> None:
            sent.append(words)
            if self.fails:
                raise RedisConnectionError("away")

    sent: list[tuple[object, ...]] = []
    sums = Away()
    seen = observer(sums)
    seen.tallies.add(figures.LOSSES)
    seen.flush()
    seen.tallies.add(figures.LOSSES)
    sums.fails = False
    seen.flush()
    first, again, rest = sent
    assert first == again
    assert rest[4] != first[4]  # its number


def test_names_that_users_chose_are_left_out_of_what_counts_under_other() -> None:
    assert figures.DECIDED.capped(("w", "n", "gate")) == ("other", "other", "gate")
    assert figures.CALLS.capped(("tool", "done")) == ("tool", "done")


def test_what_is_no_amount_is_left_out_and_nothing_goes_back() -> None:
    sums = Sums()
    seen = observer(sums)
    for amount in (2.0, math.nan, math.inf, -5.0, 1e308, 10**400):
        seen.tallies.add(figures.COST, "m", amount=amount)
    seen.tallies.observe(figures.CALLS, -3.0, "tool", "done")
    seen.flush()
    found = samples_of(FIGURES._replace(tallies=sums.tallies()))
    assert found["mosaic_cost_usd_total", "m"] == 2.0
    assert (
        found["mosaic_call_seconds_sum", "tool", "done"],
        found["mosaic_call_seconds_count", "tool", "done"],
    ) == (0, 1)


@pytest.mark.parametrize("name", ['a\n"b"\\\r\0\u2028{x="1"}', "m\udc80", "w" * 1_000_000])
def test_hostile_names_are_told_apart_cut_and_escaped(name: str) -> None:
    sums = Sums()
    seen = observer(sums)
    seen.used(Usage("0", name, 1, 0, None))
    seen.used(Usage("0", "m", 2, 0, None))
    seen.flush()
    text = exposition(FIGURES._replace(tallies=sums.tallies()))
    assert len(text) < 20_000
    told = {
        sample.labels["model"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "mosaic_tokens_total"
    }
    assert told == {name[:200].replace("\udc80", "?"): 1, "m": 2}


def test_a_counter_without_labels_is_there_before_it_counts() -> None:
    assert samples_of(FIGURES)["mosaic_losses_total",] == 0


def test_spans_that_are_lost_are_counted() -> None:
    class Losing:
        def take_lost(self) -> int:
            return 3

    sums, tracer = Sums(), Losing()
    observer(sums, cast("Tracer", tracer)).flush()
    assert samples_of(FIGURES._replace(tallies=sums.tallies()))["mosaic_spans_lost_total",] == 3
