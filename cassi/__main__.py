"""`python -m cassi`: the same as the program `cassi`."""

from cassi.cli.main import program

if __name__ == "__main__":
    program()
