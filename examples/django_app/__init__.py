"""A Django project whose tickets are answered by a workflow, once their transaction is committed."""
