import rowmq

with rowmq.connect("sqlite:///shop.db") as mq:
    emails = mq.queue("emails")
    emails.put({"to": "ann@example.com"})
    emails.put({"to": "bob@example.com"}, priority=5)  # before the others
    emails.put({"to": "cleo@example.com"}, delay=1)  # in a second
    print(f"{emails.counts()['pending']} jobs are waiting")
