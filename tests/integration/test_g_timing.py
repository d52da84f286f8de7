import time
from tests.integration.test_live_reading import *
def test_timing(worker):
    for form in FORMS:
        if "read" in form: continue
        for _ in range(2):
            t=time.perf_counter(); r=run_of(form); t1=time.perf_counter()
            list(r.stream("x")); t2=time.perf_counter(); r.wait(30); t3=time.perf_counter()
            print(f"TT {form:22} submit {t1-t:.3f} stream {t2-t1:.3f} wait {t3-t2:.3f}")
