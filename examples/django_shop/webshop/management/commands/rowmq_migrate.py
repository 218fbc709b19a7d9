from typing import Any

from django.core.management.base import BaseCommand

from webshop.messaging import client


class Command(BaseCommand):
    help = "Create RowMQ's tables, or bring them up to date."

    def handle(self, *args: Any, **options: Any) -> None:
        applied = client().migrate()
        for migration in applied:
            self.stdout.write(f"applied {migration.version:04} {migration.name}")
        if not applied:
            self.stdout.write("up to date")
