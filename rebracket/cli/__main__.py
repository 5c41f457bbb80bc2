"""`python -m rebracket.cli`."""

from rebracket.cli import main

if __name__ == "__main__":
    main()
