import rowmq

with rowmq.connect("sqlite:///shop.db") as mq:
    for letter in mq.dead_letters("orders", group="shipping"):
        print(f"{letter.message.id} died after {letter.attempts} attempts: {letter.error}")
    print(f"{mq.redrive('orders', group='shipping')} given back to the group")
