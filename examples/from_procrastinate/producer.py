"""What calls of `defer` and `configure` become."""

import rowmq

with rowmq.connect("sqlite:///shop.db") as mq:
    sums = mq.queue("sums")
    sums.put({"a": 1, "b": 2}, ordering_key="ann")  # add.configure(lock="ann").defer(a=1, b=2)
    sums.put({"a": 3, "b": 4}, ordering_key="ann")
    sums.put({"a": 5, "b": 6}, delay=3600)  # configure(schedule_in={"hours": 1})
    outcome = sums.offer_if_not_exists("sum-7", {"a": 7, "b": 8}, delay=60)  # queueing_lock="sum-7"
    print(outcome.name, sums.offer_if_not_exists("sum-7", {"a": 7, "b": 8}, delay=60).name)
