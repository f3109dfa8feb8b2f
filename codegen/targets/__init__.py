"""Targets: what turns a scheduled graph into a kernel that runs."""
