from django.db import models


class Order(models.Model):
    customer = models.CharField(max_length=200)
    total = models.FloatField()
    billed = models.BooleanField(default=False)
    points = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.customer}: {self.total:.2f}"
