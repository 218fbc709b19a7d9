from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("customer", models.CharField(max_length=200)),
                ("total", models.FloatField()),
                ("billed", models.BooleanField(default=False)),
                ("points", models.IntegerField(default=0)),
            ],
        ),
    ]
