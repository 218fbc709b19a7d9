import rowmq

with rowmq.connect("sqlite:///shop.db") as mq:
    for number in range(1, 4):
        sent = mq.publish(
            "orders", {"id": number, "total": 9.5}, key="customer-42", id=f"order-{number}"
        )
        print(f"{sent.id} is message {sent.offset} of customer-42")
