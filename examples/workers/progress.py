import time

import rowmq

app = rowmq.App("sqlite:///shop.db", graceful_timeout=20)


@app.worker("imports", concurrency=2, fetch_batch_size=1)
def load(pages: int, progress: rowmq.Progress, context: rowmq.Context) -> None:
    for page in range(pages):
        progress.report(page / pages, f"page {page + 1} of {pages}")
        if context.stopping:  # the worker is to stop: come to an end, and be tried again
            raise InterruptedError(f"stopped at page {page + 1}")
        time.sleep(0.05)
    print(f"{pages} pages are in", flush=True)
