"""`python -m asng` is `asng`."""

from asng.cli import main

if __name__ == "__main__":
    main()
