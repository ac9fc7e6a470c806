"""ringrun over several hosts: an agent on each, which starts the ranks there, reached by ssh."""
