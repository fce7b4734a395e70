"""`python -m jcfl`: the command line, where the folder of console scripts is not on the PATH."""

from jcfl.cli import main

if __name__ == "__main__":
    main()
