"""Tickets, and the runs that answer them."""
