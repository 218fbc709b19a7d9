"""Handle a topic's messages one by one until told to stop, by Ctrl-C or SIGTERM."""

import signal
import threading

import rowmq

stopping = threading.Event()


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    with (
        rowmq.connect("sqlite:///jobs.db") as mq,
        mq.subscribe("signups", group="greeter") as subscriber,
    ):
        print("following", flush=True)
        while not stopping.is_set():
            for delivery in subscriber.poll(timeout=0.5):  # at most 10, and then looks again
                print(delivery.message.offset, delivery.message.payload, flush=True)
                delivery.ack()


if __name__ == "__main__":
    main()
