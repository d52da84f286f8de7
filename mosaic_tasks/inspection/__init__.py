"""What people see of a run: progress, explanation, timeline."""
