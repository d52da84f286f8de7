"""A Flask app that asks a panel of experts, and shows who answered, and why it was enough."""
