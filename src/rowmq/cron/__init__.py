"""Schedules: `mq.cron`, and the thread that makes their ticks."""
