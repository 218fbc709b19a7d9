"""What calls of `delay` and `apply_async` become."""

from app import Receipt

import rowmq

with rowmq.connect("sqlite:///shop.db") as mq:
    receipts = mq.queue("receipts", type=Receipt)
    receipts.put(Receipt(7, "ann"))  # send_receipt.delay(...)
    receipts.put(Receipt(8, "bob"), delay=0.5)  # apply_async(..., countdown=0.5)
    receipts.put(Receipt(9, "flaky"), priority=9)  # apply_async(..., priority=9)

    with mq.transaction() as tx:  # transaction.on_commit(lambda: send_receipt.delay(...))
        tx.queue("receipts", type=Receipt).put(Receipt(10, "cleo"))
    print(f"{receipts.counts()['pending']} receipts are waiting")
