"""tmp."""
from __future__ import annotations
import os, threading, time
import pytest
from pathlib import Path
from mosaic_tasks import submit, Workflow
from tests.integration import test_financial_report as F
from tests.services import Workers
pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("mosaic_process")]
NODES=["risks","risk_paragraph","each_risk","outlook","each_outlook","actions","questions","report"]
def test_measure(workers: Workers, monkeypatch) -> None:
    speed=os.environ.get("SPEED","1")
    monkeypatch.setenv("MOSAIC_MODEL", F.MODEL)
    env = {"MOSAIC_MODEL": F.MODEL, "MOSAIC_REPLAY_SPEED": speed}
    for _ in range(2):
        workers.start("mosaic_tasks.app", ["mosaic.cpu", "mosaic.api.replay"], pool="threads", concurrency=8, env=env).wait_ready()
    texts=[]
    flows={"stream":lambda: Workflow.from_data(F.definition()), "barrier":F.barrier}
    for name in os.environ.get("WHICH","stream,barrier").split(","):
        t=time.monotonic(); run=submit(flows[name]()); got={n:[] for n in NODES}
        def read(n):
            with run.stream(n) as reading:
                for event in reading:
                    if event.kind in ("text","items"): got[n].append((round(time.monotonic()-t,2), event.value))
        ths=[threading.Thread(target=read,args=(n,),daemon=True) for n in NODES if n in [x.name for x in run.plan().nodes]]
        for th in ths: th.start()
        try: run.result(60)
        except BaseException as e:
            print(repr(e)); print({n.name:n.state for n in run.view().nodes}); raise
        total=time.monotonic()-t
        for th in ths: th.join(5)
        print(f"\n{name}: total {total:.2f} first {got['report'][0][0]:.2f}"); texts.append("".join(x for _,x in got["report"]))
        for n in NODES:
            if n!="report": print(n, [a for a,_ in got[n]])
        Path(f"/tmp/h2_fin_{name}.md").write_text(texts[-1])
    assert len(set(texts))==1
