"""docs/cli.md and its pictures: each command is run before workers of a small shop, and what it prints stands below."""
