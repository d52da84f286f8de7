"""The pages of the example."""

from django.urls import path

from django_app.tickets import views

urlpatterns = [
    path("", views.tickets, name="tickets"),
    path("tickets/<uuid:pk>", views.ticket, name="ticket"),
    path("tickets/<uuid:pk>/stream", views.stream, name="stream"),
]
