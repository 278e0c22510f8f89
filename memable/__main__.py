"""`python -m memable` is `memable`: how its worker processes are started, wherever the script may be."""

from memable.cli import main

if __name__ == "__main__":
    main()
