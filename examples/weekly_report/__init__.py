"""A weekly report from a git repository and, if there is one, a ticket export.

The tools are plain functions over plain values; `workflow.yaml` joins them and the agents that write.
"""
