from pathlib import Path

SECRET_KEY = "not for production"
DEBUG = True
ALLOWED_HOSTS = ["localhost"]
INSTALLED_APPS = ["webshop"]
ROOT_URLCONF = "webshop.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# The same database twice: for Django's own tables, and as the URL that RowMQ takes.
DATABASE = Path.cwd() / "shop.db"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATABASE,
        "TEST": {"NAME": Path.cwd() / "test.db"},
    }
}
ROWMQ_URL = f"sqlite:///{DATABASE}"
