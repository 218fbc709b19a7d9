from typing import Any

from django.core.management.base import BaseCommand

from webshop.worker import app


class Command(BaseCommand):
    help = "Handle messages until SIGTERM or Ctrl-C."

    def handle(self, *args: Any, **options: Any) -> None:
        app.run()
