"""docs/redis-cli.md: its commands are answered by a real server. `python -m pages.redis_cli` writes it."""
