from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from webshop.orders import place_order


@csrf_exempt  # an API for programs, without cookies
@require_POST
def new_order(request: HttpRequest) -> JsonResponse:
    order = place_order(request.POST["customer"], float(request.POST["total"]))
    return JsonResponse({"id": order.pk}, status=201)


urlpatterns = [path("orders", new_order)]
