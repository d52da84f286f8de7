"""What a workflow is: files, builder, validation, and the plan that workers read."""
