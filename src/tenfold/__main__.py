"""`python -m tenfold` is `tenfold`."""

from tenfold.cli import main

if __name__ == "__main__":
    main()
