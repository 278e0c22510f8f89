"""The site of docs/: `make docs` builds it into build/site, without anything from outside."""
