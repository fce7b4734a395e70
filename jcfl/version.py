"""The version of jcfl, in one place."""

__version__ = "0.1.0"
