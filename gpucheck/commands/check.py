"""Options and exit codes of one command."""
