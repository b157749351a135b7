"""``python -m nsqtools`` is the command line."""

from nsqtools.cli import main

if __name__ == "__main__":
    main()
