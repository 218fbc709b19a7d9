"""Makes the ticks of a schedule until it is told to end: `python -m tests.chaos.scheduler`."""

import logging
import signal
import sys
import threading

import rowmq
from tests.chaos.load import PERIOD_SECONDS, SCHEDULE, TICKS
from tests.chaos.record import Record


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    url, path = sys.argv[1:]
    record, stopping = Record(path), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    with rowmq.connect(url, pool_size=2, retry_for=2) as mq:
        mq.cron.install_periodic(
            SCHEDULE, PERIOD_SECONDS, queue=TICKS, payload=SCHEDULE, catch_up="all"
        )
        record.ready()
        stopping.wait()


if __name__ == "__main__":
    main()
