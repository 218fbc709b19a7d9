import rowmq

with rowmq.connect("sqlite:///shop.db") as mq:
    for worker in mq.workers():
        state = "alive" if worker.alive else "gone"
        print(f"{worker.name} of {worker.app}: {state}, {len(worker.running)} at work")
        for run in worker.running:
            print(f"  {run.handler} {run.id}: {run.progress or 0:.0%}, {run.note}")
